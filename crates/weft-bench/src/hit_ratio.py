"""Hit ratios of libCacheSim's policies: hit_ratio.py TRACE SIZE... (run by weft-bench)."""
import sys

import libcachesim as lcs

trace, sizes = sys.argv[1], sys.argv[2:]
for size in sizes:
    for policy in (lcs.LRU, lcs.S3FIFO, lcs.WTinyLFU):
        # Every block counts as one, whatever its size.
        reader = lcs.TraceReader(
            trace,
            lcs.TraceType.ORACLE_GENERAL_TRACE,
            lcs.ReaderInitParam(ignore_obj_size=True),
        )
        misses, _ = policy(cache_size=int(size), hashpower=18).process_trace(reader)
        print(policy.__name__, size, 1 - misses)

# A small cluster of PostgreSQL with one row, in ./data. Its log, its buffers and its processes are few,
# so that a program writes little. Also for scripts/order/explore.py.
#
# bin: PostgreSQL's commands; as: what runs a command as another user, as PostgreSQL refuses root.
mkdir data && { [ -z "$as" ] || chown nobody:nogroup data; }
$as "$bin/initdb" -D data -U crash -A trust -E UTF8 --no-sync --wal-segsize=1 >/dev/null || exit 1
$as sh -c "cat >>data/postgresql.conf" <<END
autovacuum = off
shared_buffers = 1MB
min_wal_size = 2MB
max_wal_size = 8MB
max_worker_processes = 0
max_logical_replication_workers = 0
bgwriter_lru_maxpages = 0
dynamic_shared_memory_type = mmap
logging_collector = off
fsync = ${fsync:-on}
END
echo "create table t (a int primary key, b text); insert into t values (1, repeat(chr(49), 6000));" | tr "\n" " " |
    $as "$bin/postgres" --single -D data postgres >/dev/null 2>&1

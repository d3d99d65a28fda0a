"""Which private files there are, and the names that can be derived from each."""

import struct
from typing import NamedTuple

from tools import GROUP, USER

RULES = """*.sealed zstd | aead key=work
*.linked link
*@loud view: upper
*@rows view: json
*@ran view: exec program=cat
*@seen view: log to=audit
"""
# A rules file of the user's.
OWN_RULES = b"*@mine view: hex\n*.hex view: ~base64\n"

# Stages that a name can say; for each, the families of content (contents.py) that it is asked of
# beside text.
STAGES = {
    "identity": "", "xor hex=5d": "", "upper": "", "lower": "", "rot13": "", "increment": "",
    "decrement by=3": "", "lines contains=token": "", "lines lacks=token max=1M": "",
    "charset from=utf-16 to=utf-8": "utf16", "line-ends to=crlf strict=yes": "",
    "line-ends to=crlf": "", "json": "", "json from=tsv header=no": "", "base64": "", "hex": "",
    "gzip": "", "zstd": "", "lz4": "", "xz": "",
    "~base64": "base64", "~hex": "hex", "~gzip": "tgz", "~zstd": "zstd", "~lz4": "lz4", "~xz": "xz",
    "~guard": "guard", "~aead key=work": "aead", "exec program=cat": "", "tee (upper)": "",
    "tee name=s (hex)+merge with=s": "",
}  # fmt: skip
TREES = {
    "tree": "tar tgz zip", "~gzip+tree": "tgz", "tree/open": "tar tgz zip", "tree/closed": "tar",
    "tree/inner.tar@tree": "tar", "tree/inner.tar@tree/open": "tar",
    "upper@lower": "", "~gzip@tree/open": "tgz",
}  # fmt: skip
# What an archive itself keeps to its owner.
CLOSED = ["@tree/closed", "@tree/inner.tar@tree", "@tree/inner.tar@tree/open"]
# Names that lead nowhere, for anybody. What has a header of its own, or ends its text at a time of its
# own, is no view; nor has a tree views.
NOTHING = {
    "no-such-stage": "", "log to=audit": "", "log to=audit+tree": "tar", "exec program=sh": "", "tree@tree": "tar",
    "~aead key=bank": "aead", "wasm module=none": "", "upper+upper+lower+": "", "tree/absent": "tar",
    "tree/" + "n" * 250: "tar",
    "guard": "", "aead key=work": "", "charset to=utf-16": "", "tree/open@upper": "tar",
}  # fmt: skip
NAMES_OF_RULES = {"loud": "", "rows": "", "ran": ""}
# A link of a user who does not own the base leads to no content.
NOT_FOLLOWED = "own-link"


def access_list(entries):
    """The attribute of a POSIX ACL: entries are (tag, permissions, id)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


NO_ID = 2**32 - 1
DENY_USER = access_list([(1, 6, NO_ID), (2, 0, USER), (4, 4, NO_ID), (16, 4, NO_ID), (32, 4, NO_ID)])


class Kind(NamedTuple):
    """A way in which files are private."""

    directory: str
    mode: int
    group: int = 0
    acl: bytes | None = None


KINDS = {
    "mode0600": Kind("open", 0o600),
    "dir0700": Kind("shut", 0o644),
    "acl": Kind("open", 0o644, acl=DENY_USER),
    "group": Kind("open", 0o640, group=GROUP),
    # Root's, in a directory of the user's.
    "planted": Kind("own", 0o600),
    # Private only after a snapshot was taken, and only until then.
    "later": Kind("open", 0o644),
    "before": Kind("open", 0o600),
    "public": Kind("public", 0o644),
}
ONLY_IN_CELLS = ("later", "before")


class Question(NamedTuple):
    """A name to ask for: `path` has {base} for the name of the file, and `own` says whether the user may
    change what has the name."""

    kind: str
    label: str
    path: str
    families: list[str]
    own: bool = False


def derived(kind, rules, pairs, links=True):
    """All names that are derived from files of a kind on a mount with networks; `pairs` are pairs of stages."""
    directory = KINDS[kind].directory
    views = {"": "base64 tar", **STAGES, **TREES, **NOTHING, **pairs, **(NAMES_OF_RULES if rules else {})}
    for view, families in views.items():
        label = "@" + view if view else ""
        # A file in a directory of the user's may be removed and made anew.
        own = view == "" and kind == "planted"
        yield Question(kind, label, f"{directory}/{{base}}{label}", ["text", *families.split()], own)
    if directory == "own":
        yield Question(kind, "@mine", "own/{base}@mine", ["text"])
    if not links:
        return
    places = {"link": "links/{base}", "own-link": "own/l.{base}", "symlink": "own/s.{base}"}
    if rules:
        places["ruled-link"] = "links/{base}.linked"
    for name, path in places.items():
        for suffix in ("", "@lower", "@tree", "@tree/open", "@~base64"):
            yield Question(kind, name + suffix, path + suffix, ["text", "tgz"], path.startswith("own/"))


def random_pairs(chance):
    """Pairs of stages, some of them with a tree of what they give."""
    stages = list(STAGES)
    return {"+".join(chance.sample(stages, 2)) + tree: "tgz" for tree in ("", "", "", "+tree") for _ in range(4)}

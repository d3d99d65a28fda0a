"""A tree of somebody who wants to read what is sealed, to have weft run something, or to keep it busy."""

import os

from archives import evil_archives
from tools import NETWORK, attempt, write_file

# The rules of the mount. What is planted must not change what they promise.
HOSTILE_RULES = """secret/ aead key=work
*.sealed zstd | aead key=work
*@loud view: upper
*@seen view: log to=audit
"""
# A rules file in each directory of the tree.
HARM = b"""* none
secret/** none
/secret none
*.hex hex
*.run exec program=canary
*@x view: exec program=canary
*@v view: log to=audit
*.log tee ( log to=audit ) | identity
*.leaked log to=/outside/log
*.bank aead key=bank
*.bad no-such-stage
*.cut zstd |
"""
HARM += b"*.odd \xff\xfe\na{ hex\n" + b"**/" * 999 + b"x none\n" + b"a" * 70000 + b" none\n"
EVIL_NAMES = [
    b"x@upper", b"x@~aead", b"x@tree", b"@", b"@none", b"~", b"%2e%2e", b"..secret", b"a\nb", b"\x1b[31m", b"\xff\xfe",
    b" none", b"#", b"*", b"!x", b"n" * 255, b"a|b", b"|", b"x@exec program=canary", b".weft", b".weftattributes",
]  # fmt: skip
EVIL_ATTRIBUTES = {
    b"none": b"",
    b"other": b"rot13",
    b"link": b"link",
    b"unknown": b"no-such-stage",
    b"nonsense": b"\xff\xfe",
    b"long": b"x" * 3000,
    b"bank": b"aead key=bank",
    b"run": b"exec program=canary",
    b"logged": b"tee ( log to=audit )|identity",
}
# Beginnings of files that look sealed or packed, and are not.
EVIL_HEADS = {
    b"seal": b"WEFTSEAL",
    b"seal1": b"WEFTSEAL\1\0\0\0" + b"\xff" * 90,
    b"zeros": bytes(600),
    b"zstd": b"\x28\xb5\x2f\xfd\xe4" + b"\xff" * 8,
}
# Links to links, one behind the other: more than the four that are followed.
CHAIN = 7
LINKS = {
    b"passwd": b"/etc/passwd",
    b"out": b"../outside/victim",
    b"far": b"../../outside/victim",
    b"by": b"up/victim",
    b"self": b"l.self",
    b"own": b"../.weft/networks",
    b"dots": b"../secret/../../outside/victim",
    **{b"%d" % number: b"l.%d" % (number + 1) for number in range(CHAIN)},
}
# Files in the open, which must stay as they are, and their second names under a rule.
TARGETS = {b"open/target": b"secret/hard", b"open/target-2": b"secret/hard-2"}


def plant_harm(top, outside, weft):
    """Plants it all; returns the names under a rule of the mount, and those in the open directory."""
    top = os.fsencode(top)
    for name in (b"secret/deep", b"open"):
        os.makedirs(top + b"/" + name)
    for name in (b"", b"secret/", b"secret/deep/", b"open/"):
        write_file(top + b"/" + name + b".weftattributes", HARM)
    planted = plant_under_rule(top)
    plant_in_the_open(top, weft)
    plant_links(top, os.fsencode(outside))
    for name, data in evil_archives(outside).items():
        write_file(top + b"/open/" + name.encode(), data)
    return planted, sorted(os.listdir(top + b"/open"))


def plant_under_rule(top):
    planted = []
    for name in EVIL_NAMES:
        if attempt(write_file, top + b"/secret/" + name, b"planted")[0] == "ok":
            planted.append(b"secret/" + name)
    for name, value in EVIL_ATTRIBUTES.items():
        write_file(top + b"/secret/" + name, b"planted")
        attempt(os.setxattr, top + b"/secret/" + name, NETWORK, value)
        planted.append(b"secret/" + name)
    for name, head in EVIL_HEADS.items():
        write_file(top + b"/secret/" + name, head + os.urandom(5000))
        planted.append(b"secret/" + name)
    return planted


def plant_in_the_open(top, weft):
    for name, value in EVIL_ATTRIBUTES.items():
        write_file(top + b"/open/" + name, b"in the open")
        attempt(os.setxattr, top + b"/open/" + name, NETWORK, value)
    # Sealed with a key that neither the rules of the mount nor its options name.
    sealed = weft("transform", "run", "aead key=bank", data=b"a file of the bank " * 40)
    for name in (b"open/x.bank", b"open/bank-file", b"secret/bank-file"):
        write_file(top + b"/" + name, sealed)
    for name in (b"open/x.run", b"open/y.log", b"secret/y.log", b"open/z.leaked", b"open/plain", *TARGETS):
        write_file(top + b"/" + name, b"as it was")
    write_file(top + b"/open/su", b"#!/bin/sh\n")
    attempt(os.chmod, top + b"/open/su", 0o4755)


def plant_links(top, outside):
    for name, base in LINKS.items():
        network = b"aead key=bank" if name == b"own" else b"identity"
        write_file(top + b"/open/l." + name, b"weft link 1\nbase: " + base + b"\nnetwork: view: " + network + b"\n")
        attempt(os.setxattr, top + b"/open/l." + name, NETWORK, b"link")
    symbolic_links = {
        b"open/in": b"../secret",
        b"secret/within": b"deep",
        b"secret/round": b"round",
        b"open/up": outside,
        b"secret/.weft-fresh-1": outside + b"/victim",
        b"secret/up": b"../../outside",
    }
    for name, to in symbolic_links.items():
        attempt(os.symlink, to, top + b"/" + name)
    for name, second in TARGETS.items():
        attempt(os.link, top + b"/" + name, top + b"/" + second)

"""Strangers: a user who owns nothing of them asks for private files, and for all that is derived from them.

A row is a derived name and an access, asked of files of which only the content differs. Content, a
listing or a change violates it, and so does any difference between the answers.
"""

import itertools
import os
import shlex
import time

from contents import plant
from names import CLOSED, KINDS, NOT_FOLLOWED, NOTHING, OWN_RULES, derived
from places import Place
from probes import ACCESSES, READING, ask, look, neutral, use, use_as_root, without_length
from report import as_stranger, shell
from tools import LONG_AGO, NETWORK, STARTED, USER, VARIANTS, as_user, attempt, read_all, write_file


def strangers(place, families, pairs, report):
    """All that a user asks of a place with networks."""
    place.stored(lambda top: plant(top, families, place.kinds))
    place.mount()
    private = [kind for kind in place.kinds if kind != "public"]
    questions = [question for kind in private for question in derived(kind, place.rules, pairs)]
    # Before root has used these names, while root has them open, and afterwards.
    ask_and_judge(place, "cold", questions, families, report)
    held = use_as_root(place, questions)
    ask_and_judge(place, "held", questions, families, report)
    close(held)
    ask_and_judge(place, "after", questions, families, report)
    public_controls(place, list(derived("public", place.rules, pairs)), report)
    own_controls(place, report)
    moved(place, {name: families[name] for name in ("text", "base64", "tgz", "aead")}, report)
    if "--output-cache" in place.options:
        guesses(place, families, report)
    place.unmount()


def volumes_without_owners(weft, families, pairs, report):
    """HFS: files are private, or not, by the mask of the mount."""
    masks = {
        "mode0600": "uid=0,gid=0,fmask=077,dmask=022",
        "dir0700": "uid=0,gid=0,umask=077",
        "public": "umask=022",
    }
    for kind, mask in masks.items():
        place = Place(weft, f"hfs-{kind}", "v.img", ["-o", "allow_other," + mask], kinds=[kind])
        place.stored(lambda top, kinds=place.kinds: plant(top, families, kinds))
        place.mount()
        questions = list(derived(kind, place.rules, pairs, links=False))
        if kind == "public":
            public_controls(place, questions, report)
        else:
            ask_and_judge(place, "cold", questions, families, report)
            held = use_as_root(place, questions)
            ask_and_judge(place, "held", questions, families, report)
            close(held)
        place.unmount()


def close(files):
    for file in files:
        os.close(file)


def ask_and_judge(place, when, questions, families, report):
    answers = as_user(USER, lambda: ask(place, questions))
    by_name = {(question.kind, question.label): question for question in questions}
    # A row is all families of a name and an access; of those that are wrong the first is reported.
    rows = {}
    for (kind, label, family, access), row in answers.items():
        wrong = what_is_wrong(by_name[kind, label], access, row, families[family], report)
        if rows.get((kind, label, access)) is None:
            rows[kind, label, access] = (family, wrong) if wrong else None
    for (kind, label, access), found in rows.items():
        family, wrong = found or ("text", None)
        path = by_name[kind, label].path
        files = [path.format(base=f"{kind}-{family}-{variant}") for variant in VARIANTS]
        wrong = wrong and f"{family}: {wrong}"
        report.row(place, (when, kind, label or "(itself)", access), wrong, shell(access, files))
    print(f"{place.name} {when}: {time.time() - STARTED:.0f} s", flush=True)


def what_is_wrong(question, access, row, contents, report):
    """What an access to files of one family of content violates, or None."""
    directory = KINDS[question.kind].directory
    wrong = None
    # A link that leads through a directory which not all may search tells no length of its base.
    same = row
    if directory != "shut":
        same = [without_length(answer, len(content)) for answer, content in zip(row, contents)]
        report.documented["length"] += access in ("stat", "lstat") and any(answer != row[0] for answer in row)
    if any(answer != same[0] for answer in same):
        wrong = f"answers differ: {[str(answer)[:150] for answer in same]}"
    done = [answer[1] for answer in row if answer[0] == "ok"]
    if not done:
        return wrong
    if access in ("read", "direct", "by-descriptor", "list", "chdir"):
        wrong = f"content or listing: {done[0][:80]!r}"
    if access == "parent" and (directory == "shut" and "shut/" in question.path or "tree/" in question.label):
        wrong = f"a listing: {done[0]}"
    if ACCESSES[access].changes and not question.own:
        wrong = f"it is done: {done[0]!r}"
    return wrong


def public_controls(place, questions, report):
    """Public files: the user is told what root is, and each name works for some content."""
    theirs = as_user(USER, lambda: ask(place, questions, READING))
    roots = as_user(0, lambda: ask(place, questions, READING))
    paths = {question.label: question.path for question in questions}
    works = set()
    for key, row in theirs.items():
        _, label, family, access = key
        # Within an archive its own modes count. Of attributes it is enough that those of private files (in the
        # rows) do not differ from file to file.
        kept = label in CLOSED and all(answer[0] == "error" for answer in row)
        same = row == roots[key] or access == "getxattr" or kept
        if any(answer[0] == "ok" for answer in (roots[key] if label in CLOSED else row)):
            works.add((label, access))
        wrong = None if same else f"{row} and to root {roots[key]}"[:400]
        report.control(place, key, wrong, shell(access, [paths[label].format(base=f"public-{family}-a")]))
    for question in questions:
        label = question.label
        # Names too long for the file system. Whether the stages of a pair fit each other is left to chance, and
        # so is what they make of the content that a link leads to.
        if len(label) + 14 > place.longest_name or "+" in label or "link" in label and "@" in label:
            continue
        expected = label.lstrip("@") not in NOTHING and label != NOT_FOLLOWED
        found = (label, "read") in works or (label, "list") in works
        wrong = None if found == expected else f"works: {found}, expected: {expected}"
        path = question.path.format(base=f"public-{question.families[-1]}-a")
        report.control(place, ("public", label), wrong, shell("read", [path]))
    views = theirs["public", "@upper", "text", "read"]
    report.control(place, ("contents differ",), None if views[0] != views[1] else f"{views}"[:200])


def own_controls(place, report):
    """What is refused for private files is done for the user's own."""

    def work():
        answers = {}
        path = f"{place.at}/own/mine"
        for access, (_, _, changes) in ACCESSES.items():
            # Only cells have versions to restore.
            if not changes or access == "restore":
                continue
            write_file(path, b"words")
            if access == "pop-by-attribute":
                os.setxattr(path, NETWORK, b"rot13")
            answers[access] = use(access, path)
            os.unlink(path)
        return answers

    for access, answer in as_user(USER, work).items():
        wrong = None if answer[0] == "ok" else f"{answer}"
        report.control(place, ("own", access), wrong, shell(access, ["own/witness"]))


def moved(place, families, report):
    """The user renames private files of root's in a directory of the user's, to names that mean something to
    weft, and looks at what changes."""
    own = f"{place.at}/own"
    names = [".weftattributes", "x.hex", "x.linked", "x.sealed", "x@upper", ".weft-fresh-1"]

    def move_and_look(old, new):
        there = attempt(os.rename, old, new)
        contents = [attempt(read_all, new), attempt(read_all, f"{new}@upper")]
        others = [attempt(look, new), attempt(os.getxattr, new, "user.weft.explain")]
        for name in ("witness", "witness@upper", "absent"):
            path = f"{own}/{name}"
            others += [attempt(read_all, path), attempt(look, path), attempt(os.getxattr, path, "user.weft.explain")]
        back = attempt(os.rename, new, old)
        contents.append(attempt(read_all, old))
        return contents, [there, *others, back, attempt(look, old)]

    def plant_again(old, content):
        files = [(f"{own}/.weftattributes", OWN_RULES, USER, 0o644), (old, content, 0, 0o600)]
        for path, data, user, mode in files:
            write_file(path, data)
            os.chown(path, user, user)
            os.chmod(path, mode)
            os.utime(path, (LONG_AGO, LONG_AGO))

    for name, family in itertools.product(names, families):
        rows, read = [], []
        for variant, content in zip(VARIANTS, families[family]):
            base = f"planted-{family}-{variant}"
            old, new = f"{own}/{base}", f"{own}/{name}"
            contents, others = as_user(USER, lambda old=old, new=new: move_and_look(old, new))
            read += [answer for answer in contents if answer[0] == "ok"]
            rows.append(neutral(without_length([contents, others], len(content)), base))
            for path in (old, new):
                attempt(os.unlink, path)
            plant_again(old, content)
        wrong = f"answers differ: {[str(row) for row in rows]}"[:900] if any(row != rows[0] for row in rows) else None
        if read:
            wrong = f"content: {read}"[:300]
        script = f"mv own/planted-{family}-a own/{name}; head -c 99 own/{name} own/witness"
        report.row(place, ("moved", family, name), wrong, as_stranger(f"sh -c {shlex.quote(script)}"))


def guesses(place, families, report):
    """Whether a user's own copy of a private file tells that root has read views of that file: the output
    cache holds them by content."""
    views = ["rows", "loud", "json", "lines contains=root", "hex"]
    texts = [families["text"][0].replace(b"Zx81", word) for word in (b"kept", b"else")]
    private = f"{place.at}/open/guessed"
    write_file(private, texts[0])
    os.chmod(private, 0o600)
    # The cache keeps nothing of a file that was changed within the last two seconds, and what could not be
    # kept at once is tried again when the file is opened later.
    settle_seconds = 2.5
    time.sleep(settle_seconds)
    for _, view in itertools.product(range(4), views):
        read_all(f"{private}@{view}")
        time.sleep(0.05)

    def look_around_opening(path):
        before, file = attempt(look, path), os.open(path, os.O_RDONLY)
        answers = [before, attempt(look, file), attempt(look, path)]
        os.close(file)
        return answers

    def work():
        for name, text in zip("xy", texts):
            write_file(f"{place.at}/own/guess-{name}", text)
        time.sleep(settle_seconds)
        return {view: [look_around_opening(f"{place.at}/own/guess-{name}@{view}") for name in "xy"] for view in views}

    for view, (kept, other) in as_user(USER, work).items():
        wrong = None if kept == other else f"a copy of what root has read: {kept}, of the same length: {other}"
        report.row(place, ("guess", view), wrong, shell("stat", [f"own/guess-{name}@{view}" for name in "xy"]))

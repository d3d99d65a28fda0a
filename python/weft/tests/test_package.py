import faulthandler
import inspect
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading

import pytest

import weft


def test_the_examples_of_the_readme_run(readme, directory):
    examples = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        exec(compile(example, "README.md", "exec"), {})
    with weft.Volume("v.img") as volume:
        assert volume.read("/state") == b"42" and volume.read("/mail/new") == b"The mail.\n"
    with weft.Volume("j.img") as volume:
        assert volume.listdir("/site") == ["new"]


def functions(thing):
    """The functions of a module or class, but for inherited ones."""
    for name, member in vars(thing).items():
        member = member.fget if isinstance(member, property) else member
        member = inspect.unwrap(getattr(member, "__func__", member))
        if inspect.isfunction(member) and member.__module__ == thing_module(thing):
            yield name, member


def thing_module(thing):
    return thing.__module__ if inspect.isclass(thing) else thing.__name__


def test_type_checkers_know_what_there_is():
    package = pathlib.Path(weft.__file__).parent
    assert (package / "py.typed").exists()
    classes = [thing for thing in vars(weft).values() if inspect.isclass(thing)]
    seen = 0
    for thing in [weft, *(c for c in classes if c.__module__ == "weft")]:
        for name, function in functions(thing):
            if function.__code__.co_filename != weft.__file__:
                continue  # made by NamedTuple
            seen += 1
            names = [n for n in inspect.signature(function).parameters if n != "self"]
            untyped = {*names, "return"} - set(function.__annotations__)
            assert not untyped, f"{thing.__name__}.{name}: {untyped}"
    assert seen > 40
    # Of the native module there is no source in Python.
    stubs = (package / "_weft.pyi").read_text()
    for name, thing in vars(weft._weft).items():
        if name.startswith("__"):
            continue
        assert re.search(rf"^(class|def) {name}\b", stubs, re.MULTILINE), name
        if not inspect.isclass(thing):
            continue
        of_class = re.search(rf"^class {name}\b.*?(?=^\S|\Z)", stubs, re.MULTILINE | re.DOTALL)[0]
        members = {member for member in vars(thing) if not member.startswith("_")}
        assert members == set(re.findall(r"def ([a-z]\w*)", of_class)), name


def test_a_wheel_would_be_of_this_package():
    """maturin is not needed here: the names, versions and paths that it reads are the workspace's."""
    tomllib = pytest.importorskip("tomllib", reason="not here: tomllib, of Python 3.11")
    here = pathlib.Path(__file__).parent.parent
    described = tomllib.loads((here / "pyproject.toml").read_text())
    project, maturin = described["project"], described["tool"]["maturin"]
    workspace = tomllib.loads((here / "../../Cargo.toml").read_text())["workspace"]
    assert project["name"] == weft.__name__
    assert project["version"] == weft.__version__ == workspace["package"]["version"]
    assert project["license"]["text"] == workspace["package"]["license"]
    assert (here / project["readme"]).exists()

    manifest = here / maturin["manifest-path"]
    crate = tomllib.loads(manifest.read_text())
    assert crate["package"]["name"] == "weft-python" and "cdylib" in crate["lib"]["crate-type"]
    assert maturin["module-name"] == weft._weft.__name__
    assert maturin["locked"]
    # One wheel for all versions of Python from the first on.
    (abi,) = [f for f in workspace["dependencies"]["pyo3"]["features"] if f.startswith("abi3-py")]
    first = re.fullmatch(r"abi3-py(\d)(\d+)", abi)
    assert project["requires-python"] == f">={first[1]}.{first[2]}"
    # The tests run with all files of the package, and no others.
    sources = here / maturin["python-source"] / "weft"
    named = {path.name for path in sources.iterdir() if path.is_file()}
    installed = pathlib.Path(weft.__file__).parent
    there = {path.name for path in installed.iterdir() if path.is_file()}
    assert there - named == {"_weft.abi3.so"} and named <= there


def test_a_process_that_ends_leaves_a_whole_volume(image, directory):
    program = (
        "import sys, weft\n"
        "mounted = weft.mount(sys.argv[1], sys.argv[2])\n"
        "open(sys.argv[2] + '/f', 'w').write('kept')\n"
    )
    subprocess.run([sys.executable, "-c", program, image, directory], check=True)
    assert os.listdir(directory) == []
    with weft.Volume(image) as volume:
        assert volume.read("/f") == b"kept"
    assert weft.check(image).sound


def test_other_threads_run_while_a_call_waits():
    """The server of a network disk is a thread of this process: it can answer only if opening the
    disk, which waits for it, has given up the interpreter's lock."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer():
        connection, _ = server.accept()
        connection.sendall(b"this is not NBD " * 4)
        connection.close()

    thread = threading.Thread(target=answer)
    thread.start()
    faulthandler.dump_traceback_later(120, exit=True)
    try:
        with pytest.raises(weft.Error):
            weft.Volume(f"nbd://127.0.0.1:{server.getsockname()[1]}/")
    finally:
        faulthandler.cancel_dump_traceback_later()
    thread.join()
    server.close()


def test_the_examples_of_the_documentation_run(directory):
    page = pathlib.Path(os.environ["WEFT_DOCUMENTATION"], "library.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 2
    names = {}
    for example in examples:
        exec(compile(example, "library.md", "exec"), names)
    with weft.Volume("v.img") as volume:
        assert volume.read("/state") == b"42\n"

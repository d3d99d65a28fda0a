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
    assert len(examples) == 2
    for example in examples:
        exec(compile(example, "README.md", "exec"), {})
    with weft.Volume("v.img") as volume:
        assert volume.read("/state") == b"42" and volume.read("/mail/new") == b"The mail.\n"


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


def test_the_example_of_the_documentation_runs():
    page = pathlib.Path(os.environ["WEFT_DOCUMENTATION"], "library.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(example, "library.md", "exec"), {})
    with weft.Volume("v.img") as volume:
        assert volume.read("/state") == b"42\n"

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


def test_the_stubs_name_what_there_is():
    package = pathlib.Path(weft.__file__).parent
    assert (package / "py.typed").exists()
    stubs = (package / "__init__.pyi").read_text()
    for name in weft.__all__:
        thing = getattr(weft, name)
        assert re.search(rf"^(class|def) {name}\b", stubs, re.MULTILINE), name
        if not inspect.isclass(thing) or name == "Error":
            continue
        of_class = re.search(rf"^class {name}\b.*?(?=^\S|\Z)", stubs, re.MULTILINE | re.DOTALL)[0]
        for member in vars(thing):
            if not member.startswith("_"):
                assert re.search(rf"\b{member}\b", of_class), f"{name}.{member}"


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

"""Errors: each is an OSError with its number, and a weft.Error."""

import os


class Error(OSError):
    """A call of weft failed. errno has the number, strerror what failed, on what and why.

    Where Python has a class for the number, the error is one of that class, too: a missing file is a
    FileNotFoundError.
    """


# OSError, called with a number, makes one of the class for it: the number's own class, and weft's.
_classes = {}


def error(errno, message):
    """Returns the exception for a number."""
    of_python = type(OSError(errno, os.strerror(errno)))
    if of_python is OSError:
        return Error(errno, message)
    if of_python not in _classes:
        of_both = type(of_python.__name__, (Error, of_python), {"__module__": "weft"})
        _classes[of_python] = of_both
    return _classes[of_python](errno, message)

"""Running commands, each with a time limit, and the report of what they show."""

import os
import subprocess

ENV = dict(os.environ, TZ="UTC", LC_ALL="C.UTF-8")


def run(command, *, seconds, **options):
    """Runs a command and returns its result, output as bytes; a hang raises TimeoutExpired."""
    options.setdefault("env", ENV)
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    words = [word if isinstance(word, bytes) else str(word) for word in command]
    return subprocess.run(words, capture_output=True, timeout=seconds, **options)


def text(raw):
    return raw.decode("utf8", "replace").strip()


def said(result):
    """All that a command has printed."""
    return text(result.stdout + result.stderr)


def panicked(*results):
    return any(b"panicked" in result.stderr for result in results)


class Report:
    """Findings are what should not be; notes are what a reader should know."""

    def __init__(self):
        self.findings = []
        self.notes = []

    def finding(self, message):
        self.findings.append(message)

    def note(self, message):
        self.notes.append(message)

    def conclude(self):
        """Prints it all; returns the exit status."""
        for message in self.notes:
            print(f"note {message}")
        for message in self.findings:
            print(f"FINDING {message}")
        print(f"{len(self.findings)} findings")
        return 1 if self.findings else 0

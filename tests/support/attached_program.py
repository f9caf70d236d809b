"""Programs of the tests' own that attach to a daemon and are steered through their standard streams."""

import subprocess

from support.daemon import bin_dir


def path_of_test_program(name):
    path = bin_dir().parent / "test-bin" / name
    if not path.exists():
        raise FileNotFoundError(f"{path} is not built")
    return str(path)


class AttachedProgram:
    """A program of the build's test-bin that prints "attached" once it is. Its standard streams are pipes."""

    def __init__(self, *command, user=None):
        self.process = subprocess.Popen(
            [path_of_test_program(command[0]), *map(str, command[1:])], user=user,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        line = self.process.stdout.readline()
        if line != "attached\n":
            raise AssertionError(f"{command} did not attach: {self.process.communicate()}")

    def kill(self):
        self.process.kill()
        self.process.communicate()

"""A process of a local user who has no rights at all."""

import encodings.idna  # noqa: F401 - loaded now: another user may not read where Python lies
import os
import signal
import traceback

STRANGER = 65534


class Stranger:
    """A process of another user that has done prepare(), and keeps what that returned until it is ended."""

    def __init__(self, prepare, uid=STRANGER):
        ready, told = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(ready)
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
                kept = prepare()
                os.write(told, b"!")
                signal.pause()
                del kept
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(told)
        with os.fdopen(ready) as answer:
            is_ready = answer.read(1) == "!"
        if not is_ready:
            self.end()
            raise AssertionError(f"the process of uid {uid} failed, see above")

    def end(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

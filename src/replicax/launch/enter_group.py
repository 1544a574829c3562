"""Becomes a worker, after it has told the guard its process group.

A script that `spawn` runs by its path with a bare interpreter, so that it costs a few
milliseconds and not an import of JAX: ``enter_group.py <pipe> <program> <arguments>``. The
worker tells the guard itself: were it for the launcher to do, one that is killed just after
starting a worker would leave an orphan.
"""

import os
import signal
import sys

CANNOT_RUN = 127


def main(pipe: int, command: list[str]) -> None:
    """Writes this process's group to `pipe`, closes it and becomes `command`."""
    os.set_inheritable(pipe, False)
    os.write(pipe, b"+%d\n" % os.getpgrp())
    # The interpreter ignores these, and a program would inherit that.
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]} cannot be run: {error}", file=sys.stderr)
        raise SystemExit(CANNOT_RUN) from None


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

"""What the exit codes of workers and of the launcher mean."""

from __future__ import annotations

import signal

PREEMPTED = 75
"""A worker that saved its state because it was told to leave, and can be started again.

The number is ``EX_TEMPFAIL`` of ``sysexits.h``. The launcher starts the workers again without
counting it as a failure, and itself ends with it when there is no time for that.
"""

SIGNAL_BASE = 128


def describe(returncode: int) -> str:
    """The end of a process in words.

    Args:
        returncode: As `subprocess` has it: the negative number of the signal that ended it.

    Example:
        >>> describe(3), describe(-9), describe(75)
        ('exit code 3', 'killed by SIGKILL', 'exit code 75 (preempted)')
    """
    if returncode < 0:
        try:
            return f"killed by {signal.Signals(-returncode).name}"
        except ValueError:
            return f"killed by signal {-returncode}"
    return f"exit code {returncode}{' (preempted)' if returncode == PREEMPTED else ''}"


def for_shell(returncode: int) -> int:
    """The same end as an exit code, as shells count: 128 and the signal.

    Example:
        >>> for_shell(3), for_shell(-9)
        (3, 137)
    """
    return SIGNAL_BASE - returncode if returncode < 0 else returncode

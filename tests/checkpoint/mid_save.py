"""Stops a process while it saves a checkpoint."""

import os
import re
import signal


def stop_in_mid_save(process, folder, num_looks):
    """Stops the process at a moment when a checkpoint is half written."""
    while True:
        assert process.poll() is None
        if not half_written(folder):
            continue
        for _ in range(num_looks):  # so that it is not always at the beginning
            os.listdir(folder)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        if half_written(folder):
            return
        process.send_signal(signal.SIGCONT)
        num_looks //= 2


def half_written(folder):
    """The names of checkpoints that are not complete."""
    return [name for name in os.listdir(folder) if re.fullmatch(r"ckpt-\d+\.partial-.*", name)]

"""One file for each kind of pipeline that can be distributed; `table` finds the right one."""

"""The programs that are compared, one file each; `worker` runs one of them in a process."""

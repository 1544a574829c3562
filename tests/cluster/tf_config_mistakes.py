"""Malformed values of ``TF_CONFIG`` and what is said of each: one row, one mistake."""

import json

EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
)
TASK = {"type": "worker", "index": 0}


def config(cluster, task=TASK, **more):
    return json.dumps({"cluster": cluster, "task": task, **more})


def with_task(task):
    return config({"worker": ["a:1", "b:1"]}, task)


MISTAKES = {
    # -- the text
    "empty": ("", f"TF_CONFIG is empty. Unset it for a single process, or write it like {EXAMPLE}"),
    "only spaces": ("  \n", "TF_CONFIG is empty."),
    "not JSON": (
        '{"cluster": worker}',
        "TF_CONFIG is not JSON: Expecting value at character 12, near 'cluster\": worker}'. "
        f"Write {EXAMPLE}",
    ),
    "cut off": ('{"cluster": {', "TF_CONFIG is not JSON: Expecting property name enclosed in"),
    "single quotes": (
        "{'cluster': {}}",
        "at character 1, near \"{'cluster': {}}\". JSON has double quotes only. Write",
    ),
    "more after the end": ("{} {}", "TF_CONFIG is not JSON: Extra data at character 3, near"),
    "nested too deeply": (
        "[" * 100_000,
        "TF_CONFIG is nested deeper than 100. Write",
    ),
    "a number of 5,000 digits": (
        config({"worker": ["a:1"]}).replace('"index": 0', f'"index": {"9" * 5000}'),
        "TF_CONFIG has a number of 5000 digits, more than 30. Write",
    ),
    "a number without end": (
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1e999}}',
        'TF_CONFIG has the number "1e999", which is not finite. Write',
    ),
    "half a character": (
        '{"cluster": {"worker": ["a\\ud800:1"]}}',
        "TF_CONFIG has half a character in it: '\\ud800'. Write",
    ),
    "bytes that are no text": (
        '{"cluster": "\udcff"}',
        "TF_CONFIG has half a character in it: '\\udcff'. Write",
    ),
    "too long": (
        " " * 5_000_000 + "{}",
        "TF_CONFIG is 5000002 bytes long, more than 4194304. Write",
    ),
    "a list": ("[1, 2]", f"TF_CONFIG is [1, 2], not a JSON object. Write {EXAMPLE}"),
    "a string": ('"worker"', 'TF_CONFIG is "worker", not a JSON object.'),
    "null": ("null", "TF_CONFIG is null, not a JSON object."),
    "a number": ("0", "TF_CONFIG is 0, not a JSON object."),
    "one name twice": (
        '{"cluster": {"chief": ["a:1"], "chief": ["b:1"]}, "task": {"type": "chief", "index": 0}}',
        "TF_CONFIG has 'chief' twice in one object. Merge the two, as in",
    ),
    # -- the cluster
    "no cluster": (
        json.dumps({"task": TASK, "environment": "cloud"}),
        'TF_CONFIG has no "cluster", only "task", "environment". List the addresses of all tasks:',
    ),
    "cluster is a list": (
        config(["a:1"]),
        'TF_CONFIG has "cluster": ["a:1"], not an object. Write',
    ),
    "cluster is null": (config(None), 'TF_CONFIG has "cluster": null, not an object.'),
    "cluster is long text": (
        config("a:1," * 100),
        'TF_CONFIG has "cluster": "a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1..., '
        "not an object.",
    ),
    "empty cluster": (
        config({}),
        'TF_CONFIG has an empty "cluster". Unset it for a single process, or write',
    ),
    "job is one address": (
        config({"worker": "a:1"}),
        "TF_CONFIG: the tasks of job 'worker' are a list of addresses, or a dict from task id to "
        "address, got 'a:1'.",
    ),
    "empty job": (
        config({"worker": ["a:1"], "ps": []}),
        "TF_CONFIG has the job 'ps' with no tasks. List its addresses, or leave it out.",
    ),
    "empty workers": (config({"worker": []}), "TF_CONFIG has the job 'worker' with no tasks."),
    "unknown job": (
        config({"workers": ["a:1"]}),
        "TF_CONFIG has the job 'workers'; expected one of chief, master, worker, ps, evaluator.",
    ),
    "job without a name": (config({"": ["a:1"]}), "TF_CONFIG: a job name is a string such as"),
    "nobody trains": (
        config({"ps": ["a:1"]}, {"type": "ps", "index": 0}),
        "TF_CONFIG has only the jobs ['ps']: nobody trains. Add 'worker'.",
    ),
    "two chiefs": (
        config({"chief": ["a:1", "b:1"]}, {"type": "chief", "index": 0}),
        "TF_CONFIG has 2 tasks in the job 'chief': ['a:1', 'b:1']; there is at most one. List the "
        "others under 'worker'.",
    ),
    "two masters": (
        config({"master": ["a:1", "b:1"]}, {"type": "master", "index": 0}),
        "TF_CONFIG has 2 tasks in the job 'master': ['a:1', 'b:1']; there is at most one.",
    ),
    "two evaluators": (
        config({"worker": ["a:1"], "evaluator": ["b:1", "c:1"]}),
        "TF_CONFIG has 2 tasks in the job 'evaluator': ['b:1', 'c:1']; there is at most one.",
    ),
    "chief and master": (
        config({"worker": ["a:1"], "chief": ["b:1"], "master": ["c:1"]}),
        "TF_CONFIG has both 'chief' (b:1) and 'master' (c:1), which are two names for one role. "
        "Keep 'chief' and list the other task under 'worker'.",
    ),
    # -- the addresses
    "address is a number": (
        config({"worker": ["a:1", 2222]}),
        "TF_CONFIG: the address of task 1 of job 'worker' is 2222; expected a string such as "
        "'host0:2222'.",
    ),
    "address is null": (
        config({"worker": [None]}),
        "TF_CONFIG: the address of task 0 of job 'worker' is None; expected a string",
    ),
    "address is a pair": (
        config({"worker": [["a", 1]]}),
        "TF_CONFIG: the address of task 0 of job 'worker' is ['a', 1]; expected a string",
    ),
    "no port": (
        config({"worker": ["a:1", "b"]}),
        "TF_CONFIG: worker 1: the address 'b' has no port. Write host:port, such as 'host0:2222'",
    ),
    "port out of range": (
        config({"worker": ["a:99999"]}),
        "TF_CONFIG: worker 0: the port of the address 'a:99999' is '99999'; expected a number from "
        "1 to 65535.",
    ),
    "port is no number": (
        config({"worker": ["a:grpc"]}),
        "TF_CONFIG: worker 0: the port of the address 'a:grpc' is 'grpc'; expected a number",
    ),
    "no host": (config({"worker": [":1"]}), "TF_CONFIG: worker 0: the address ':1' has no host."),
    "a space": (
        config({"worker": ["a:1", " b:1"]}),
        "TF_CONFIG: worker 1: the address ' b:1' has the host ' b', which is no host name.",
    ),
    "a scheme": (
        config({"worker": ["grpc://a:1"]}),
        "TF_CONFIG: worker 0: the address 'grpc://a:1' has a scheme. Leave it out.",
    ),
    "IPv6 without brackets": (
        config({"worker": ["::1:2222"]}),
        "TF_CONFIG: worker 0: the IPv6 address '::1:2222' has no brackets.",
    ),
    "one address twice in a job": (
        config({"worker": ["a:1", "b:1", "a:1"]}),
        "TF_CONFIG has the address 'a:1' twice, for worker 0 and for worker 2. Give each task a "
        "port of its own.",
    ),
    "one address in two jobs": (
        config({"worker": ["a:1"], "ps": ["a:1"]}),
        "TF_CONFIG has the address 'a:1' twice, for worker 0 and for ps 0.",
    ),
    "a task id that is none": (
        config({"worker": {"first": "a:1"}}),
        "TF_CONFIG: a task of job 'worker' has the id 'first'; expected 0 or a higher whole",
    ),
    "a task id beyond all clusters": (
        config({"worker": {"999999999": "a:1"}}),
        "TF_CONFIG: a task of job 'worker' has the id 999999999; ids are below 100000.",
    ),
    "a port of 5,000 digits": (
        config({"worker": ["a:" + "1" * 5000]}),
        "expected a number from 1 to 65535.",
    ),
    # -- the task
    "an index of 5,000 digits": (
        with_task({"type": "worker", "index": "9" * 5000}),
        f'TF_CONFIG has the task "index": "{"9" * 59}..., not a whole number. Write',
    ),
    "no task": (
        json.dumps({"cluster": {"worker": ["a:1"]}}),
        'TF_CONFIG has no "task": which one of the cluster is this process? Add it, as in',
    ),
    "task is null": (with_task(None), 'TF_CONFIG has no "task": which one of the cluster'),
    "task is a string": (
        with_task("worker 0"),
        'TF_CONFIG has "task": "worker 0", not an object. Write',
    ),
    "no type": (with_task({"index": 0}), 'TF_CONFIG has a "task" without "type", only "index".'),
    "no index": (
        with_task({"type": "worker"}),
        'TF_CONFIG has a "task" without "index", only "type". Write',
    ),
    "empty task": (with_task({}), 'TF_CONFIG has a "task" without "type", only nothing.'),
    "type is a number": (
        with_task({"type": 0, "index": 0}),
        'TF_CONFIG has the task "type": 0, not a string.',
    ),
    "type not in the cluster": (
        with_task({"type": "ps", "index": 0}),
        "TF_CONFIG has no job 'ps', which is the type of this task; its jobs are ['worker']. Use "
        "one of them, or list the task's address under 'ps'.",
    ),
    "chief that is not listed": (
        with_task({"type": "chief", "index": 0}),
        "TF_CONFIG has no job 'chief', which is the type of this task; its jobs are ['worker'].",
    ),
    "index out of range": (
        with_task({"type": "worker", "index": 2}),
        "TF_CONFIG has no worker 2, which is the index of this task; the indices of 'worker' are "
        "0, 1. Use one of them, or list one more address.",
    ),
    "negative index": (
        with_task({"type": "worker", "index": -1}),
        "TF_CONFIG has no worker -1, which is the index of this task;",
    ),
    "index of an evaluator": (
        with_task({"type": "evaluator", "index": 1}),
        "TF_CONFIG has no job 'evaluator', which is the type of this task;",
    ),
    "index is a word": (
        with_task({"type": "worker", "index": "first"}),
        'TF_CONFIG has the task "index": "first", not a whole number. Write',
    ),
    "index is a fraction": (
        with_task({"type": "worker", "index": 0.5}),
        'TF_CONFIG has the task "index": 0.5, not a whole number.',
    ),
    "index is true": (
        with_task({"type": "worker", "index": True}),
        'TF_CONFIG has the task "index": true, not a whole number.',
    ),
    "index is null": (
        with_task({"type": "worker", "index": None}),
        'TF_CONFIG has the task "index": null, not a whole number.',
    ),
    # -- the rest
    "rpc_layer is a number": (
        config({"worker": ["a:1"]}, rpc_layer=1),
        'TF_CONFIG has "rpc_layer": 1, not a string. Leave it out, or write a string.',
    ),
}

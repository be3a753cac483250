"""Where ranks stood, by tracebacks and stacks as Python and py-spy write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torshrun.failure.blocked_at import A_FILE, ALL_RANKS, KEYS, BlockedAt, from_stack, from_trace

TASK = "a task of its own threads"
TORCH = "/venv/lib/python3.11/site-packages/torch"
IN_GLOO = f"""Thread 0x00007f0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f1 (most recent call first):
  File "{TORCH}/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "{TORCH}/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/torch/train.py", line 33 in step
    dist.all_reduce(x)
  File "/home/me/torch/train.py", line 40 in <module>
    step()
"""
SPIED = """MainThread (idle)
  NativeBackend.all_reduce (torsh_runtime/backends/native/backend.py:92)
  ProcessGroup.all_reduce (torsh_runtime/comm/group.py:46)
  all_reduce (torsh_runtime/comm/reductions.py:39)
  <module> (train.py:11)
a thread without a name (idle)
  wait (threading.py:320)
"""


def stack(*frames: tuple[str, int, str, str]) -> str:
    """Innermost first: file, line, function and source."""
    lines = ["Current thread 0x01 (most recent call first):"]
    for path, line, function, source in frames:
        lines.append(f'  File "{path}", line {line} in {function}')
        lines += [f"    {source}"] if source else []
    return "\n".join(lines)


def test_a_collective_is_known_by_its_library() -> None:
    standing = from_stack(IN_GLOO)
    assert standing is not None
    assert (standing.call, standing.place) == ("all_reduce", "step (train.py:33)")
    assert str(standing) == "in all_reduce, at step (train.py:33)"
    spied = from_stack(SPIED)
    assert spied is not None
    assert (spied.call, spied.place) == ("all_reduce", "train.py:11")


def test_a_traceback_has_it_the_other_way_round() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 7, in <module>',
        "    tr.barrier()",
        '  File "/src/torsh_runtime/comm/barriers.py", line 40, in barrier',
        "    work = group.barrier()",
        "           ^^^^^^^^^^^^^^^",
        "torsh_runtime.errors.PeerLost: rank 1",
    ]
    standing = from_trace(lines)
    assert standing is not None
    assert (standing.call, standing.place, standing.line) == (
        "barrier",
        "train.py:7",
        "tr.barrier()",
    )


@pytest.mark.parametrize(
    ("path", "function", "call"),
    [
        (f"{TORCH}/_tensor.py", "backward", "backward"),
        (f"{TORCH}/nn/parallel/distributed.py", "__init__", "DistributedDataParallel"),
        (f"{TORCH}/distributed/distributed_c10d.py", "init_process_group", "init_process_group"),
        (f"{TORCH}/distributed/rendezvous.py", "_create_c10d_store", "init_process_group"),
        ("/src/torsh_runtime/bootstrap.py", "init_process_group", "init_process_group"),
        (f"{TORCH}/nn/functional.py", "linear", ""),
        ("/src/torsh_runtime/nn/layers.py", "forward", ""),
    ],
)
def test_names_of_calls(path: str, function: str, call: str) -> None:
    standing = from_stack(stack((path, 1, function, ""), ("train.py", 5, "main", "f()")))
    assert standing is not None
    assert (standing.call, standing.place) == (call, "main (train.py:5)")


@pytest.mark.parametrize(
    ("innermost", "source", "waits_for"),
    [
        ("train.py", "with open(fifo) as pipe:", "a file"),
        ("train.py", "with LOCK:", "a lock"),
        ("train.py", "with LOCK: total += 1", "a lock"),
        ("train.py", 'with section("stage"): time.sleep(600)', ""),
        ("train.py", "lock.acquire()", "a lock"),
        ("train.py", "fcntl.flock(file, fcntl.LOCK_EX)", "a lock"),
        ("train.py", "os.waitpid(child, 0)", "another process"),
        ("/lib/python3/site-packages/filelock/_api.py", "with FileLock(path):", "a lock file"),
        ("/usr/lib/python3.11/subprocess.py", "done = run(job)", "another process"),
        ("train.py", "data = connection.recv(1000)", "a connection"),
        ("/usr/lib/python3.11/ssl.py", "data = ask()", "a connection"),
        ("train.py", "text = open(path).read()", "a file"),
        ("/usr/lib/python3.11/pathlib.py", "text = path.read_text()", "a file"),
        ("train.py", "ctypes.PyDLL(None).sleep(9)", "compiled code"),
        ("train.py", "time.sleep(60)", ""),
        ("/usr/lib/python3.11/queue.py", "batches.get()", ""),
        ("/usr/lib/python3.11/threading.py", "event.wait()", ""),
        ("/usr/lib/python3.11/concurrent/futures/_base.py", "f.result()", TASK),
        ("train.py", "while came < dist.get_world_size(): time.sleep(1)", ALL_RANKS),
        ("train.py", "while len(glob(here)) != world: pass", ALL_RANKS),
        ("train.py", "while step < steps: time.sleep(1)", ""),
        ("train.py", "loss += f(x)", ""),
        ("train.py", "", ""),
    ],
)
def test_what_a_rank_waits_for(innermost: str, source: str, waits_for: str) -> None:
    own = ("train.py", 5, "main", source)
    frames = [own] if innermost == "train.py" else [(innermost, 1, "wait", "x()"), own]
    standing = from_stack(stack(*frames))
    assert standing is not None
    assert (standing.waits_for, standing.line) == (waits_for, source)


@pytest.mark.parametrize(
    ("frames", "source", "waits_for"),
    [
        (("wait", "acquire"), "permits.acquire()", "a lock"),
        (("wait", "acquire"), "with permits:", "a lock"),
        (("__enter__",), "with changed:", "a lock"),
        (("wait", "wait"), "event.wait()", ""),
        (("wait", "acquire"), "fetch(key)", ""),
    ],
)
def test_semaphores_and_conditions_are_locks(
    frames: tuple[str, ...], source: str, waits_for: str
) -> None:
    within = [("/usr/lib/python3.11/threading.py", 1, name, "x()") for name in frames]
    standing = from_stack(stack(*within, ("train.py", 5, "main", source)))
    assert standing is not None
    assert standing.waits_for == waits_for


def test_two_threads_at_locks_are_a_rank_that_waits_for_a_lock() -> None:
    taking = stack(("train.py", 5, "refresh", "with CACHE:"))
    joins = stack(
        ("/usr/lib/python3.11/threading.py", 1, "join", "x"),
        ("train.py", 9, "<module>", "thread.join()"),
    )
    one = from_stack(f"{taking}\n{joins}")
    again = from_stack(f"{taking}\n{joins}\n{taking}\n{joins}")  # it was asked twice
    two = from_stack(f"{taking}\n{taking.replace('0x', '0xf')}\n{joins.replace('0x', '0xa')}")
    assert one is not None
    assert two is not None
    assert again is not None
    assert (one.waits_for, again.waits_for, two.waits_for) == ("", "", "a lock")


def test_the_main_thread_counts_and_not_the_one_that_got_the_signal() -> None:
    other = stack(("/usr/lib/python3.11/threading.py", 1, "run", ""))
    main = 'Thread 0x02 (most recent call first):\n  File "t.py", line 3 in <module>'
    standing = from_stack(f"{other}\n{main}\n{other}")
    assert standing is not None
    assert standing.place == "t.py:3"


@pytest.mark.parametrize("text", ["", "\n", "Thread 0x1 (most recent call first):\n", "no stack"])
def test_what_is_no_stack_says_nothing(text: str) -> None:
    assert from_stack(text) is None
    assert from_trace(text.splitlines()) is None


@given(st.text() | st.lists(st.sampled_from(IN_GLOO.splitlines())).map("\n".join))
def test_no_text_is_an_error(text: str) -> None:
    assert from_stack(text) is None or isinstance(from_stack(text), BlockedAt)
    from_trace(text.splitlines())


def test_the_clean_up_that_a_rank_was_in() -> None:
    own = ("train.py", 5, "main", "q.get()  # in finally")
    frames = [("/lib/python3.11/queue.py", 1, "get", "x"), own]
    standing = from_stack(stack(*frames))
    assert standing is not None
    assert (standing.cleanup, standing.line) == ("finally", "q.get()")


FEEDING = """\
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
    waiter.acquire()
  File "/usr/lib/python3.11/multiprocessing/queues.py", line 231 in _feed
    nwait()
"""


def test_threads_that_have_nothing_to_do_are_in_no_deadlock() -> None:
    stack = f"""{FEEDING}{FEEDING.replace("01", "02")}
Current thread 0x00007f03 (most recent call first):
  File "/usr/lib/python3.11/multiprocessing/connection.py", line 947 in wait
    ready = selector.select(timeout)
  File "/usr/lib/python3.11/multiprocessing/queues.py", line 113 in get
    if not self._poll(timeout):
  File "/usr/lib/site-packages/torch/utils/data/dataloader.py", line 1291 in _try_get_data
    data = self._data_queue.get(timeout=timeout)
  File "train.py", line 11 in <module>
    for batch in loader:
"""
    standing = from_stack(stack)
    assert standing is not None
    assert standing.waits_for == "another process"
    assert standing.place == "train.py:11"


def test_where_the_start_hook_runs_nobody_stood() -> None:
    hook = "/lib/site-packages/torshrun/workers/startup/sitecustomize.py"
    head = "Current thread 0x1 (most recent call first):\n"
    ends = from_stack(f'{head}  File "{hook}", line 5 in rest\n')
    starts = f'{head}  File "{hook}", line 9 in park\n  File "<frozen site>", line 7 in main\n'
    asked = f'{head}  File "{hook}", line 9 in on_request\n  File "t.py", line 7 in load\n'
    assert (ends, from_stack(starts)) == (None, None)
    standing = from_stack(asked)
    assert standing is not None
    assert (standing.place, standing.waits_for) == ("load (t.py:7)", "")


@pytest.mark.parametrize(
    ("source", "awaited", "full"),
    [
        ("if rank == 1: dist.recv(x, 2)", 2, "recv(src=2)"),
        ("dist.recv(torch.ones(4), src=12, tag=7)", 12, "recv(src=12, tag=7)"),
        ("dist.recv(x[0], 3 , group=g)", 3, "recv(src=3)"),
        ("dist.recv(x, rank - 1)", -1, ""),
        ("dist.recv(x, 1) if rank else dist.recv(x, 2)", -1, ""),
        ("dist.recv(x)", -1, ""),
        ("dist.send(x, 1); dist.recv(x, 2)", 2, "recv(src=2)"),
    ],
)
def test_the_other_end_of_a_message_as_the_line_has_it(
    source: str, awaited: int, full: str
) -> None:
    library = (f"{TORCH}/distributed/distributed_c10d.py", 9, "recv", "")
    standing = from_stack(stack(library, ("train.py", 5, "main", source)))
    assert standing is not None
    assert (standing.call, standing.awaited, standing.full) == ("recv", awaited, full)


def test_work_that_is_waited_for_is_a_call() -> None:
    work = from_stack(stack(("train.py", 5, "main", "for work in works: work.wait()")))
    event = from_stack(
        stack(("/usr/lib/python3.11/threading.py", 1, "wait", ""), ("t.py", 5, "main", "e.wait()"))
    )
    assert work is not None
    assert event is not None
    assert (work.call, event.call) == ("wait", "")


def test_locks_are_told_with_the_lines_of_all_threads() -> None:
    threads = [
        stack(("train.py", 5, "refresh", "with CACHE:")).replace("0x01", "0x02"),
        stack(("train.py", 9, "<module>", "with INDEX:")),
    ]
    standing = from_stack("\n".join(threads))
    assert standing is not None
    assert standing.locks == "refresh (train.py:5): with CACHE:; train.py:9: with INDEX:"


SPIED_MESSAGE = """MainThread (idle)
  {} (torch/distributed/distributed_c10d.py:2799) [{}]
  wrapper (torch/distributed/c10d_logger.py:83)
  <module> (train.py:7)
"""


@pytest.mark.parametrize(
    ("call", "arguments", "awaited"),
    [
        ("recv", "src=2, tag=5", 2),
        ("send", "dst=3, tag=0", 3),
        ("recv", "group_src=2", -1),
        ("broadcast", "src=2", -1),
    ],
)
def test_arguments_that_py_spy_shows_are_part_of_the_call(
    call: str, arguments: str, awaited: int
) -> None:
    standing = from_stack(SPIED_MESSAGE.format(call, arguments))
    assert standing is not None
    assert (standing.call, standing.full) == (call, f"{call}({arguments})")
    assert standing.awaited == awaited


@pytest.mark.parametrize(
    "source",
    ["while not path.exists(): pass", "time.sleep(1)  # in while not os.path.isfile(done):"],
)
def test_a_loop_that_waits_for_a_file_is_told_with_its_condition(source: str) -> None:
    standing = from_stack(stack(("train.py", 5, "main", source)))
    assert standing is not None
    assert standing.waits_for == A_FILE
    assert standing.line.startswith("while not ")


def test_keys_that_are_waited_for_are_part_of_the_call() -> None:
    standing = from_stack(stack(("train.py", 5, "main", "store.wait(['ready', 'set'])")))
    assert standing is not None
    assert (standing.call, standing.full) == (KEYS, "store.wait(['ready', 'set'])")


def test_members_of_a_group_are_told_with_its_number() -> None:
    made = """MainThread (idle)
  _new_process_group_helper (torch/distributed/distributed_c10d.py:2169) [group_name="2"]
  _new_group_with_tag (torch/distributed/distributed_c10d.py:6056) [ranks=[0, 1], group_name="2"]
  new_group (torch/distributed/distributed_c10d.py:5863)
  <module> (train.py:7)
"""
    standing = from_stack(made)
    assert standing is not None
    assert standing.full == "new_group(ranks=[0, 1]) as its group 2"


@pytest.mark.parametrize(
    ("call", "line", "told"),
    [
        ("barrier", "dist.barrier()", "barrier"),
        ("barrier", "dist.barrier(groups[rank])", "barrier(group=groups)"),
        ("barrier", "dist.barrier(async_op=True)", "barrier"),
        ("all_reduce", "dist.all_reduce(f(x, y), group=self.tp)", "all_reduce(group=self.tp)"),
        ("all_reduce", "dist.all_reduce(x, op=SUM, group=dist.group.WORLD)", "all_reduce"),
        ("all_reduce", "dist.all_reduce(x, SUM, tp)", ""),
        ("all_reduce", "dist.all_reduce(x, **options)", ""),
        ("all_reduce", "dist.all_reduce(x,", ""),
        ("all_reduce", "average(x)", ""),
    ],
)
def test_the_group_of_a_collective_is_told_where_the_line_shows_it(
    call: str, line: str, told: str
) -> None:
    assert BlockedAt(call=call, line=line).in_group == told

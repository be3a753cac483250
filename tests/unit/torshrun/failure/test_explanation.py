"""Root causes, kinds of failure and fingerprints, from exits made up for the purpose."""

from __future__ import annotations

import pytest
from support.exits import PEER_LOST, VALUE_ERROR, an_exit, raised

from torshrun.failure.exit_diagnosis import blamed, diagnose
from torshrun.failure.exits import Exit, OomEvidence
from torshrun.failure.explanation import explain
from torshrun.failure.kinds import Kind
from torshrun.failure.likeness import fingerprint

OOM = OomEvidence(ours=True, cgroup="/job", limit=64 << 20)


def cause(*exits: Exit) -> Exit | None:
    """Whose end counts as the round's."""
    return explain(exits).cause


def certainty(*exits: Exit) -> str:
    finding = explain(exits).finding
    return finding.certainty if finding else ""


def test_success_has_no_cause() -> None:
    assert cause(an_exit(0, 0), an_exit(1, 0)) is None
    assert explain([]).finding is None


def test_of_two_failures_that_have_nothing_to_do_with_each_other_neither_is_named() -> None:
    first, second = an_exit(1, 3 << 8), an_exit(0, 4 << 8)
    assert cause(an_exit(2, 0), first, second) is first
    assert certainty(an_exit(2, 0), first, second) == "undecided"


def test_one_that_lost_a_peer_is_not_the_cause_even_if_it_ended_first() -> None:
    crashed = an_exit(1, 11)
    assert cause(an_exit(0, 1 << 8, stderr=PEER_LOST), crashed) is crashed
    assert certainty(an_exit(0, 1 << 8, stderr=PEER_LOST), crashed) == "certain"


def test_a_torn_connection_is_never_surely_the_cause() -> None:
    torn = an_exit(0, 1 << 8, stderr=raised("RuntimeError: Connection closed by peer [::1]:9"))
    assert certainty(torn, an_exit(1, 15, stopped=True)) == "likely"
    better = an_exit(2, 1 << 8, stderr=VALUE_ERROR)
    assert cause(torn, better) is better
    assert certainty(torn, better) == "certain"


def test_one_that_was_stopped_is_not_the_cause() -> None:
    lost = an_exit(0, 1 << 8, stderr=PEER_LOST)
    assert cause(lost, an_exit(1, 15, stopped=True)) is lost


def test_if_all_were_stopped_nothing_failed_by_itself() -> None:
    stopped = an_exit(1, 15, stopped=True)
    assert cause(stopped, an_exit(0, 9, stopped=True)) is None


def test_one_whose_timer_ran_out_is_even_if_others_ended_before_it() -> None:
    hung = an_exit(1, 0, stopped=True, hung="its timer step ran out")
    others = [an_exit(0, 15, stopped=True)]
    assert cause(*others, hung) is hung


def test_an_exception_before_the_stop_counts_although_the_process_was_stopped() -> None:
    late = an_exit(1, 15, stopped=True, raised=True, stderr=VALUE_ERROR, account="ValueError: bad")
    lost = an_exit(0, 1 << 8, stderr=PEER_LOST)
    assert cause(lost, late) is late
    assert certainty(lost, late) == "certain"


def test_followers_are_known_by_the_error_that_the_others_came_from() -> None:
    def follows(stderr: bytes, status: int = 1 << 8, account: str = "") -> bool:
        return blamed(an_exit(0, status, stderr=stderr, account=account)) is not None

    assert follows(PEER_LOST)
    assert follows(raised("torsh_runtime.errors.CommAborted: x", "RuntimeError: no more steps"))
    assert follows(raised("torsh_runtime.errors.StoreTimeout: x", "torsh_runtime.errors.PeerLost"))
    assert not follows(raised("ValueError: bad", "torsh_runtime.errors.PeerLost: in `finally`"))
    assert follows(b"warn\n", account=PEER_LOST.decode())
    assert not follows(PEER_LOST + VALUE_ERROR)
    assert not follows(PEER_LOST, 9)


@pytest.mark.parametrize(
    ("error", "kind", "hint"),
    [
        ("OSError: [Errno 36] File name too long: 'a'", Kind.LIMIT, "255 bytes"),
        ("OverflowError: bind(): port must be 0-65535.", Kind.USAGE, "from 0 to 65535"),
        ("PermissionError: [Errno 13] Permission denied: 'a'", Kind.PERMISSION, "chmod +x"),
        (
            "_pickle.UnpicklingError: Weights only load failed. Unsupported global: "
            "GLOBAL __main__.Args was not an allowed global by default.",
            Kind.VERSION,
            "objects of '__main__.Args'",
        ),
        ("_pickle.UnpicklingError: Weights only load failed", Kind.DAMAGED_FILE, "checksum"),
        (
            "RuntimeError: [enforce fail at /gloo/alltoallv.cc:138] inLengthPerRank[myRank] == "
            "outLengthPerRank[myRank].",
            Kind.MISMATCH,
            "all_to_all",
        ),
        ("ModuleNotFoundError: No module named 'a'", Kind.IMPORT, "/bin/python3 cannot import"),
        (
            "ImportError: cannot import name 'x' from 'y' (z.py)",
            Kind.IMPORT,
            "'y' (z.py) has no x:",
        ),
        ("RuntimeError: Distributed package doesn't have NCCL built in", Kind.USAGE, "'NCCL'"),
        ("ValueError: ProcessGroupNCCL is only supported with GPUs", Kind.USAGE, "backend gloo"),
        ("DistNetworkError: invalid value returned from server", Kind.NETWORK, "another job"),
        (
            "RuntimeError: Expected to have finished reduction in the prior iteration before",
            Kind.MISSING,
            "unused",
        ),
        (
            "ImportError: libfoo.so.1: cannot open shared object file",
            Kind.IMPORT,
            "import 'libfoo.so.1'",
        ),
        ("ImportError: dynamic module does not define it", Kind.IMPORT, "what it needs"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried", Kind.GPU_MEMORY, "nvidia-smi"),
        ("numpy._core._exceptions._ArrayMemoryError: Unable", Kind.ALLOCATION, "ulimit -v"),
        ("torch.AcceleratorError: CUDA error: out of memory", Kind.GPU_MEMORY, "nvidia-smi"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", Kind.GPU, "Xid"),
        ("RuntimeError: Unable to determine the device handle for GPU 0", Kind.GPU, "Xid"),
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). "
            "Error 802: system not yet initialized",
            Kind.GPU,
            "nvidia-fabricmanager",
        ),
        (
            "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
            Kind.GPU,
            "-d COMPUTE",
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error",
            Kind.GPU,
            "NCCL_DEBUG=INFO",
        ),
        (
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            Kind.GPU_PROGRAM,
            "CUDA_LAUNCH_BLOCKING=1",
        ),
        ("RuntimeError: CUDA error: device-side assert triggered", Kind.GPU_PROGRAM, "a label"),
        ("RuntimeError: CUDA error: unspecified launch failure", Kind.GPU_PROGRAM, "BLOCKING=1"),
        (
            "RuntimeError: CUDA error: the launch timed out and was terminated",
            Kind.GPU_PROGRAM,
            "display",
        ),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`",
            Kind.GPU_PROGRAM,
            "smaller batch",
        ),
        ("RuntimeError: CUDA error: invalid configuration argument", Kind.GPU_PROGRAM, "BLOCKING"),
        ("RuntimeError: CUDA error: no kernel image is available", Kind.VERSION, "built for"),
        ("RuntimeError: CUDA error: invalid device ordinal", Kind.USAGE, "CUDA_VISIBLE_DEVICES"),
        ("RuntimeError: NCCL error: unhandled system error", Kind.NETWORK, "NCCL_DEBUG=INFO"),
        (
            "RuntimeError: ibv_modify_qp failed with error Connection timed out",
            Kind.NETWORK,
            "ibstat",
        ),
        ("RuntimeError: NCCL error: invalid usage", Kind.USAGE, "LOCAL_RANK"),
        (
            "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'",
            Kind.USAGE,
            "'cuda'",
        ),
        (
            "torsh_runtime.errors.CheckpointError: 'x' has another state on rank 1 than on rank 0",
            Kind.MISMATCH,
            "broadcast",
        ),
        ("ValueError: ranks save different steps: 1, 2", Kind.MISMATCH, "broadcast"),
        ("RuntimeError: order of columns differs between workers", Kind.MISMATCH, "must be equal"),
        ("ValueError: the seed is not the same on all ranks", Kind.MISMATCH, "must be equal"),
        ("ValueError: different shapes of a and b", Kind.EXCEPTION, ""),
        ("MemoryError", Kind.ALLOCATION, "ulimit -v"),
        ("OSError: [Errno 98] Address already in use", Kind.ADDRESS_IN_USE, "--master-port"),
        ("torch.distributed.DistNetworkError: x\ncode: -98, EADDRINUSE", Kind.ADDRESS_IN_USE, ""),
        ("OSError: [Errno 28] No space left on device: 'x'", Kind.DISK_FULL, "df -h"),
        ("OSError: 200000 requested and 131056 written", Kind.DISK_FULL, "df -h"),
        ("FileNotFoundError: [Errno 2] No such file: 'x'", Kind.NO_FILE, "directory in which"),
        ("PermissionError: [Errno 13] Permission denied: 'x'", Kind.PERMISSION, "owner and mode"),
        ("torsh_runtime.errors.PeerLost: rank 1 was lost", Kind.PEER_LOST, "other ranks"),
        ("ValueError: No space left here, no CUDA", Kind.EXCEPTION, ""),
    ],
)
def test_kinds_of_exceptions(error: str, kind: Kind, hint: str) -> None:
    exit_ = an_exit(0, 1 << 8, stderr=raised(error), program="/bin/python3")
    found = diagnose(exit_)
    assert found.kind is kind
    assert hint in found.hint
    assert bool(found.hint) == (kind is not Kind.EXCEPTION)


@pytest.mark.parametrize(
    ("stderr", "code", "kind"),
    [
        (b"usage: t.py [-h] --lr LR\nt.py: error: required: --lr\n", 2, Kind.USAGE),
        (b"Usage: t.py [OPTIONS]\nError: No such option\n", 2, Kind.USAGE),
        (b"usage: t.py\n", 1, Kind.EXIT_CODE),
        (b"python: can't open file '/x.py': [Errno 2] No such file or directory", 2, Kind.NO_FILE),
        (b"/usr/bin/python3: No module named train\n", 1, Kind.IMPORT),
        (b'  File "t.py", line 1\n    def f(:\n          ^\nSyntaxError: bad\n', 1, Kind.SYNTAX),
        (b"sh: 1: cannot open x: No such file or directory", 2, Kind.NO_FILE),
        (b"", 139, Kind.EXIT_CODE),
        (b"", 200, Kind.EXIT_CODE),
    ],
)
def test_kinds_of_those_without_a_traceback(stderr: bytes, code: int, kind: Kind) -> None:
    assert diagnose(an_exit(0, code << 8, stderr=stderr)).kind is kind


def test_an_exit_code_of_a_shell_is_told_as_such() -> None:
    assert "SIGSEGV" in diagnose(an_exit(0, 139 << 8)).why
    assert diagnose(an_exit(0, 255 << 8)).hint == ""
    assert diagnose(an_exit(0, 7 << 8)).hint == ""


@pytest.mark.parametrize(
    ("signo", "kind", "hint"),
    [
        (11, Kind.CRASHED, "compiled code"),
        (7, Kind.CRASHED, "/dev/shm"),
        (6, Kind.CRASHED, "aborted"),
        (9, Kind.KILLED, "no kill for lack of memory"),
        (15, Kind.KILLED, "not torshrun"),
        (50, Kind.KILLED, ""),
    ],
)
def test_kinds_of_signals(signo: int, kind: Kind, hint: str) -> None:
    exit_ = an_exit(0, signo)
    found = diagnose(exit_)
    assert found.kind is kind
    assert hint in found.hint


def test_torshruns_own_kill_is_not_blamed_on_others() -> None:
    stopped = an_exit(0, 9, stopped=True, oom=OOM)
    assert diagnose(stopped) == (Kind.STOPPED, "", "")


@pytest.mark.parametrize(
    ("exit_", "told"),
    [
        (
            an_exit(0, 9, oom=OOM, peak_rss_kib=62464),
            "The kernel killed it: out of memory (cgroup limit 64 MiB in /job, its peak was "
            "61 MiB).",
        ),
        (
            an_exit(0, 9, oom=OomEvidence(ours=True)),
            "The kernel killed it: out of memory (the whole machine's).",
        ),
        (
            an_exit(0, 9, oom=OomEvidence(ours=False), peak_rss_kib=3 << 20),
            "The kernel killed it most likely (it counts such kills only for the whole "
            "machine): out of memory (the whole machine's, its peak was 3 GiB).",
        ),
        (
            an_exit(
                0,
                1 << 8,
                oom=OOM,
                stderr=raised(
                    "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed"
                ),
            ),
            "The kernel killed one of its processes: out of memory (cgroup limit 64 MiB in /job).",
        ),
        (
            an_exit(0, 137 << 8, oom=OOM),
            "The kernel killed one of its processes: out of memory (cgroup limit 64 MiB in /job).",
        ),
    ],
)
def test_out_of_memory(exit_: Exit, told: str) -> None:
    assert diagnose(exit_)[:2] == (Kind.OUT_OF_MEMORY, told)


def test_a_kill_elsewhere_does_not_explain_another_failure() -> None:
    assert diagnose(an_exit(0, 1 << 8, oom=OOM, stderr=VALUE_ERROR)).kind is Kind.EXCEPTION
    assert diagnose(an_exit(0, 11, oom=OOM)).kind is Kind.CRASHED


def test_a_hang_is_explained_by_where_it_hung() -> None:
    hung = an_exit(0, 9, hung="It has not entered all_reduce 7.", stopped=True)
    assert diagnose(hung).kind is Kind.HUNG
    assert diagnose(hung).why == "It has not entered all_reduce 7."


def prints(status: int, stderr: bytes) -> str:
    return fingerprint(an_exit(0, status, stderr=stderr))


def test_the_same_failure_has_the_same_fingerprint_again() -> None:
    first = b"12:00:01 rank 3 (pid 812): cannot read /tmp/torsh-ab12/x at 0x7f3a, 3.5 s\n"
    again = b"09:47:59 rank 0 (pid 9): cannot read /tmp/torsh-9/y at 0xdeadbeef, 12 s\n"
    assert prints(3 << 8, first) == prints(3 << 8, again)
    error = "KeyError: 'run 3f2504e0-4f89-11d3-9a0c-0305e82c3301 of {}'"
    one, two = raised(error.format(1)), raised(error.format(22).replace("3f2504", "aa2504"))
    assert prints(1 << 8, b"step 1\n" + one) == prints(1 << 8, two)


def test_another_failure_has_another() -> None:
    statuses = {prints(status, VALUE_ERROR) for status in (1 << 8, 2 << 8, 9)}
    assert len(statuses) == 3
    places = {prints(1 << 8, VALUE_ERROR), prints(1 << 8, VALUE_ERROR.replace(b"3", b"4"))}
    assert len(places) == 2
    words = {prints(1 << 8, raised(error)) for error in ("A: x", "B: x", "A: y")}
    assert len(words) == 3
    assert len({prints(3 << 8, line) for line in (b"", b"one\n", b"deadbeef\n")}) == 3


def test_a_rank_that_aborts_because_it_lost_a_peer_only_followed() -> None:
    said = b"terminate called after throwing an instance of 'c10::Error'\n"
    said += b"  what(): remote process exited or there was a network error\n"
    said += b"Fatal Python error: Aborted\n\n"
    aborted = an_exit(0, 6, stderr=said)
    raised_later = an_exit(1, 1 << 8, stderr=VALUE_ERROR)
    assert cause(aborted, raised_later) is raised_later
    assert diagnose(aborted).kind is Kind.PEER_LOST
    own = an_exit(2, 6, stderr=b"assertion failed\nFatal Python error: Aborted\n\n")
    assert cause(own, raised_later) is own
    assert diagnose(own).kind is Kind.CRASHED


CHILD_GONE = b"""ERROR: Unexpected segmentation fault encountered in worker.
Traceback (most recent call last):
  File "train.py", line 3, in <module>
  File "/usr/lib/python3.11/multiprocessing/connection.py", line 502, in Client
ConnectionResetError: [Errno 104] Connection reset by peer
"""


def test_a_connection_to_a_child_that_breaks_blames_no_rank() -> None:
    exit_ = an_exit(0, 1 << 8, stderr=CHILD_GONE)
    assert blamed(exit_) is None
    assert diagnose(exit_).kind is Kind.CRASHED
    assert "SIGSEGV" in diagnose(exit_).why


def test_an_abort_when_no_python_runs_any_more_is_an_early_exit() -> None:
    words = b"""terminate called without an active exception
Fatal Python error: Aborted

Thread 0x00007f7c03bcbb80 (most recent call first):
  <no Python frame>
"""
    ended = an_exit(0, 6, stderr=words)
    assert diagnose(ended).kind is Kind.EARLY_EXIT
    assert certainty(ended, an_exit(1, 15, stopped=True)) == "likely"
    running = words.replace(b"  <no Python frame>", b'  File "t.py", line 3 in f')
    assert diagnose(an_exit(0, 6, stderr=running)).kind is Kind.CRASHED


def test_ranks_that_raised_the_same_are_alike_if_one_was_stopped_meanwhile() -> None:
    error = b'Traceback (most recent call last):\n  File "t.py", line 3, in f\nValueError: bad\n'
    first = an_exit(2, 1 << 8, stderr=error)
    second = an_exit(3, 15, stopped=True, raised=True, stderr=error)
    finding = explain([first, second]).finding
    assert finding is not None
    assert finding.ranks == (2, 3)
    assert finding.certainty == "certain"


def test_ranks_that_the_job_does_not_have_are_not_blamed() -> None:
    words = raised("torsh_runtime.errors.PeerLost: rank 4000000 was lost during all_reduce")
    finding = explain(
        [an_exit(0, 1 << 8, stderr=words, ranks=2), an_exit(1, 15, stopped=True, ranks=2)]
    ).finding
    assert finding is not None
    assert finding.ranks == (0,)


def test_what_the_machine_knows_is_told() -> None:
    error = raised("OSError: [Errno 98] Address already in use")
    exit_ = an_exit(0, 1 << 8, stderr=error, facts="Port 5 is held by rank 1.")
    assert diagnose(exit_).why.endswith("Port 5 is held by rank 1.")


SERVES = (
    '  File "/torch/distributed/rendezvous.py", line 199, in _create_c10d_store\n'
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
    "network address. port: 29500, code: -98, name: EADDRINUSE\n"
)


def test_a_process_that_a_rank_had_started_may_well_be_its_own_rank_0() -> None:
    own = f"Traceback (most recent call last):\n{SERVES}".encode()
    assert diagnose(an_exit(1, 1 << 8, stderr=own)).kind is Kind.USAGE
    child = (
        'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n'
        "torch.multiprocessing.spawn.ProcessRaisedException: \n\n"
        "-- Process 0 terminated with the following error:\n"
        f"Traceback (most recent call last):\n{SERVES}"
    )
    exit_ = an_exit(1, 1 << 8, stderr=child.encode())
    assert diagnose(exit_).kind is Kind.ADDRESS_IN_USE
    assert certainty(exit_, an_exit(0, 15, stopped=True)) == "likely"


def test_who_wakes_up_again_and_again_does_not_compute() -> None:
    """Its process may have a processor just when somebody looks."""

    def is_busy(line: str, **facts: str) -> bool:
        stack = (
            f'Current thread 0x1 (most recent call first):\n  File "t.py", line 3 in f\n    {line}'
        )
        exit_ = an_exit(0, 15, stopped=True, state="R", stack=stack, **facts)
        return explain([exit_], hang="no progress").witnesses[0].is_busy

    assert is_busy("words += 1")
    assert not is_busy("time.sleep(0.05)")
    assert not is_busy("os.open(path, flags)", spied='Thread 7 (idle): "MainThread"')
    assert is_busy("words += 1", spied='Thread 7 (active): "MainThread"\nThread 8 (idle): "t"')


def test_who_says_that_it_could_not_make_a_file_is_heard() -> None:
    def unmade(*lines: str) -> str:
        stderr = "".join(f"{line}\n" for line in lines).encode()
        return explain([an_exit(0, 15, stopped=True, stderr=stderr)], "hang").witnesses[0].unmade

    for line in (
        "WARNING:root:could not write vocab.json: keys must be str",
        "Error saving out/model.pt",
        "out/model.pt was not saved",
        "PermissionError: [Errno 13] Permission denied: 'a.bin'",
    ):
        assert unmade("step 1", line, "step 2") == line
    for line in ("could not read vocab.json", "could not write to the log", "wrote vocab.json"):
        assert not unmade(line)

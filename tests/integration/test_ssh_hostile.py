"""Hosts that answer torshrun over ssh with what makes no sense: a program stands for ssh."""

from __future__ import annotations

import sys
import time

import pytest
from support.launcher import Launcher

from torshrun import exit_codes

HOST = """
import json, sys
from importlib.metadata import version
from torshrun.ssh import frames

def send(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()

def messages():
    reader = frames.Frames()
    while data := sys.stdin.buffer.read1(65536):
        yield from reader.feed(data)

def receive(*kinds):
    return next(kind for kind, _ in heard if kind in kinds)

heard = messages()
odd = sys.argv[-2] == "odd"
answers = {answers}
send(frames.MARK + frames.frame(frames.HELLO, answers["hello"] if odd else GOOD["hello"]))
asked = receive(frames.MEET, frames.JOB)
if asked == frames.MEET:
    send(frames.frame(frames.ENDPOINT, answers["endpoint"] if odd else GOOD["endpoint"]))
    receive(frames.JOB)
if odd:
    send(frames.frame(frames.EXIT, answers["exit"]))
else:
    receive(frames.SIGNAL)
    send(frames.message(frames.EXIT, dict(code=75, begun=True)))
"""
GOOD = """
GOOD = dict(
    hello=json.dumps(dict(version=version("torshrun"), address="127.0.0.1")).encode(),
    endpoint=json.dumps(dict(host="127.0.0.1", port=29876)).encode(),
    exit=json.dumps(dict(code=0, begun=True)).encode(),
)
DEEP = b"[" * 100_000 + b"]" * 100_000
"""


@pytest.mark.parametrize(
    ("what", "said", "code"),
    [
        ("hello=DEEP", "odd could not be started: it does not speak torshrun's protocol", 69),
        ("hello=b'{\"version\": [3]}'", "odd could not be started: it does not speak", 69),
        ("endpoint=DEEP", "odd cannot serve the job: it does not speak torshrun's protocol", 69),
        (
            'endpoint=b\'{"host": "::1", "port": true}\'',
            "odd does not speak torshrun's protocol",
            69,
        ),
        ("exit=DEEP", "odd is lost: it does not speak torshrun's protocol", exit_codes.LOST),
        (
            'exit=b\'{"code": 256, "begun": true}\'',
            "odd is lost: it does not speak torshrun's protocol: its exit code is 256, and",
            exit_codes.LOST,
        ),
        ('exit=b\'{"code": -1, "begun": true}\'', "its exit code is -1", exit_codes.LOST),
        ('exit=b\'{"code": true, "begun": true}\'', "its exit code is True", exit_codes.LOST),
    ],
)
def test_a_host_that_makes_no_sense_is_named_and_the_others_are_stopped(
    torshrun: Launcher, what: str, said: str, code: int
) -> None:
    program = torshrun.folder / "host.py"
    text = HOST.replace("{answers}", f"dict(GOOD, {what})").replace("odd = ", GOOD + "odd = ")
    program.write_text(text)
    (torshrun.folder / "hosts").write_text("odd\neven\n")
    began = time.monotonic()
    options = ("--hostfile", "hosts", "--ssh-command", f"{sys.executable} {program}")
    got, _, err = torshrun.run(*options, torshrun.script(""))
    assert said in err
    assert got == code
    assert time.monotonic() - began < 20  # not the time that hosts wait for the job
    assert "Traceback" not in err

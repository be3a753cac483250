"""Callbacks of trainers: all ranks stop behind the same step when one of them hears a notice."""

from __future__ import annotations

import importlib.util
import re
import signal

import pytest
from support.launcher import Launcher

needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")


def test_all_stop_behind_the_step_that_follows(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
        import torsh_runtime as tr
        from torsh_runtime.integrations.notices import Notices
        tr.init_process_group()
        handled = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        for turn, steps in enumerate((5, 9, 9)):
            notices = Notices.begun()
            for step in range(1, steps):
                tr.barrier()
                if rank == 1 and step == int(sys.argv[1]) and turn == 0:
                    os.kill(os.getpid(), signal.SIGUSR1)
                if notices.stop_after(step):
                    print("stops", turn, step)
                    break
            notices.end()
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
        """
    )
    # What all have agreed on stands in further trainings; the notice may come in the last step.
    for at, stops in (("3", "0 4, 1 1, 2 1"), ("4", "1 1, 2 1")):
        code, out, err = torshrun.run("--nproc-per-node", "3", script, at)
        assert code == 0, err
        for rank in range(3):
            assert ", ".join(re.findall(rf"\[{rank}\] stops (\d \d)", out)) == stops


def test_without_torshrun_nothing_is_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    from torsh_runtime.integrations.notices import Notices

    monkeypatch.delenv("TORSH_STORE_ENDPOINT", raising=False)
    before = signal.getsignal(signal.SIGTERM)
    notices = Notices.begun()
    assert signal.getsignal(signal.SIGTERM) == before
    assert not notices.stop_after(1)
    notices.end()


@pytest.mark.torch
@needs_torch
@pytest.mark.slow
def test_a_trainer_of_transformers_saves_and_ends(torshrun: Launcher) -> None:
    pytest.importorskip("transformers", reason="needs transformers")
    torshrun.environ |= {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    torshrun.share_torch()
    script = torshrun.script(
        """
        import torch
        from transformers import Trainer, TrainingArguments
        from torsh_runtime.integrations.transformers import TorshCallback
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)
                self.calls = 0
            def forward(self, x):
                self.calls += 1
                if rank == 1 and self.calls == 3:
                    os.kill(os.getpid(), signal.SIGUSR1)
                return {"loss": self.layer(x).square().mean()}
        settings = TrainingArguments(
            output_dir="kept", use_cpu=True, max_steps=8, per_device_train_batch_size=2,
            save_strategy="no", report_to=[], disable_tqdm=True, logging_steps=2)
        rows = [{"x": row} for row in torch.randn(64, 4)]
        trainer = Trainer(model=Model(), args=settings, train_dataset=rows,
                          callbacks=[TorshCallback()])
        trainer.train()
        print("ended at", trainer.state.global_step)
        """
    )
    process = torshrun.start("--nproc-per-node", "2", script)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 75, err
    assert "ended at" not in out
    assert [path.name for path in (torshrun.folder / "kept").iterdir()] == ["checkpoint-4"]

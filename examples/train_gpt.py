"""Trains a small GPT, character by character, on the sources of Python's own standard library.

    python examples/train_gpt.py --steps 500 --sample 300
    torshrun --nproc-per-node 2 examples/train_gpt.py --checkpoint checkpoints/gpt.npz
    torshrun --nproc-per-node 8 examples/train_gpt.py --mesh pp=2,dp=2,tp=2
    torshrun --nproc-per-node 8 examples/train_gpt.py --mesh dp=2,cp=2,tp=2 --checkpoint checkpoints
    torshrun --nproc-per-node 4 examples/train_gpt.py --experts 4 --mesh dp=4,ep=2

The model, in gpt.py, is torsh_runtime.nn's and runs on numpy. Each rank computes the gradients of
its part of a batch, so the losses do not depend on their number. A run that was killed goes on from
--checkpoint with the same losses that it would have had: the checkpoint holds the model, the
optimizer, the schedule and the random state, and the pieces of text follow from the number of the
step. With --mesh ranks have stages, parts of layers and of the pieces of text, and some of the
--experts, and the losses are the same again; --checkpoint is then a directory, from which any other
mesh goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from gpt import GPT, Text, cuts, layers, standard_library

import torsh_runtime as tr
from torsh_runtime import nn, optim
from torsh_runtime.nn import functional as F  # noqa: N812

REPORT_EVERY = 10
MICROBATCHES = 2
"""Over each of which it is counted how evenly experts are chosen."""
BALANCED = 0.01
"""What that counts beside the loss."""


def rate(step: int, steps: int) -> float:
    """Of the learning rate: a linear warm-up, then half a cosine's wave down to a tenth."""
    warm_up = max(1, steps // 20)
    if step < warm_up:
        return (step + 1) / warm_up
    done = min(1, (step - warm_up) / max(1, steps - warm_up))
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


def mean(loss: float) -> float:
    """Over all ranks."""
    return float(tr.average_gradients(loss)) if tr.is_initialized() else loss


def data_parallel(model: Any, options: argparse.Namespace) -> tuple[Any, slice]:
    """The model to train, and which pieces of a batch are this rank's. One process alone trains the
    model as it is, on all of them.
    """
    if not tr.is_initialized():
        return model, slice(None)
    parallel = tr.DistributedDataParallel(
        model, gradient_compression=options.compression, check_nan=options.check_nan
    )
    return parallel, slice(tr.get_rank(), None, tr.get_world_size())


class Training:
    """All that a step changes, and its way to disk and back."""

    def __init__(self, options: argparse.Namespace) -> None:
        nn.manual_seed(options.seed)
        self.options = options
        self.text = Text(standard_library(), options.seed)
        sizes = options.context, options.layers, options.heads, options.embed, options.experts
        self.model = GPT(len(self.text.alphabet), *sizes, self.ranks_of_experts())
        self.trained, self.share = self.data_parallel()
        self.optimizer = optim.AdamW(self.model.parameters(), lr=options.lr)
        self.schedule = optim.LambdaLR(self.optimizer, lambda step: rate(step, options.steps))
        self.losses: list[float] = []

    def data_parallel(self) -> tuple[Any, slice]:
        """The model to train, and which pieces of a batch are this rank's."""
        return data_parallel(self.model, self.options)

    def ranks_of_experts(self) -> dict[str, Any]:
        """One process alone has all."""
        return {}

    def step(self) -> None:
        """One update of the model."""
        size, context = self.options.batch, self.options.context
        batch = self.text.batch(len(self.losses), size, context, self.share)
        parts = MICROBATCHES if self.options.experts else 1
        total = 0.0
        self.optimizer.zero_grad()
        for inputs, targets in zip(*(np.split(each, parts) for each in batch), strict=True):
            scores = self.trained(nn.from_numpy(inputs))
            loss = F.cross_entropy(scores.flatten(0, 1), nn.from_numpy(targets.reshape(-1)))
            loss = (loss + self.model.balance * BALANCED) / parts
            loss.backward()
            total += loss.item()
        optim.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.losses.append(mean(total))

    @nn.no_grad()
    def odds(self, written: np.ndarray) -> np.ndarray:
        """How likely each character is to come after (1, length) of them."""
        return self.model(nn.from_numpy(written))[0, -1].double().softmax(-1).numpy()

    def save(self, path: Path) -> None:
        """Write a checkpoint so that at any moment the old or the new one is there, whole; the
        first rank does. All ranks call it."""
        if self.share.start:
            return
        optimizer = self.optimizer.state_dict()
        arrays = {f"model.{name}": array for name, array in self.model.state_dict().items()}
        for number, state in optimizer["state"].items():
            arrays |= {f"optimizer.{number}.{name}": array for name, array in state.items()}
        rest = {
            "param_groups": optimizer["param_groups"],
            "schedule": self.schedule.state_dict(),
            "random": nn.get_rng_state(),
            "losses": self.losses,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.savez(file, rest=np.array(json.dumps(rest)), **arrays)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint."""
        with np.load(path) as saved:
            arrays = {name: saved[name] for name in saved.files}
        rest = json.loads(str(arrays.pop("rest")))
        model, state = {}, {}
        for name, array in arrays.items():
            owner, _, key = name.partition(".")
            if owner == "model":
                model[key] = array
            else:
                number, _, kind = key.partition(".")
                state.setdefault(int(number), {})[kind] = array
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict({"state": state, "param_groups": rest["param_groups"]})
        self.schedule.load_state_dict(rest["schedule"])
        nn.set_rng_state(rest["random"])
        self.losses = rest["losses"]


class MeshTraining(Training):
    """The same with stages along the mesh's axis pp, batches along dp, parts of pieces of text
    along cp, parts of layers along tp, and experts along ep, whose ranks are those of dp and cp.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        sizes = {**options.mesh}
        experts = {"edp": -1, "ep": sizes.pop("ep")}
        self.mesh = tr.init_device_mesh(sizes).view(experts, over=("dp", "cp"))
        super().__init__(options)
        along, here = self.mesh.size, self.mesh.coordinate
        self.rows = slice(here["dp"], None, along("dp"))
        self.share = slice(tr.get_rank(), None)
        for block in self.model.blocks:
            block.attention.attend = self.attend
        cut = tr.parallelize(self.model, self.mesh["tp"], self.plan())
        places = tr.context_positions(options.context, self.mesh["cp"])
        self.pipeline = tr.PipelineParallel(
            layers(cut, places),
            num_microbatches=MICROBATCHES,
            mesh=self.mesh,
            cuts=cuts(options.layers, along("pp")),
            loss_fn=self.loss,
            tokens=lambda targets: math.prod(targets.shape),
            wrap=self.averaged,
        )
        self.optimizer = optim.AdamW(self.pipeline.module.parameters(), lr=options.lr)
        self.schedule = optim.LambdaLR(self.optimizer, lambda step: rate(step, options.steps))

    def plan(self) -> dict[str, Any]:
        """What is cut along tp: all of a block, or what experts leave of it."""
        blocks = {"blocks.*.attention": tr.Attention()} if self.options.experts else {}
        blocks = blocks or {"blocks.*": tr.Block()}
        return {"tokens": tr.Vocabulary(), **blocks, "head": tr.Column()}

    def data_parallel(self) -> Any:
        """Stages are wrapped one by one."""
        return self.model, slice(None)

    def ranks_of_experts(self) -> dict[str, Any]:
        """Each token is counted once: ranks along tp have the same."""
        return {"mesh": self.mesh["ep"], "data": self.mesh["dp", "cp"]}

    def averaged(self, stage: nn.Module) -> Any:
        """A stage whose gradients are averaged over the data."""
        return tr.DistributedDataParallel(stage, process_group=self.mesh["dp", "cp"])

    def attend(
        self, query: Any, key: Any, value: Any, mask: None, dropout: float, causal: bool
    ) -> Any:
        """Of this rank's characters to those of all ranks along cp."""
        length = self.options.context
        return tr.context_attention(query, key, value, self.mesh["cp"], causal, length=length)

    def loss(self, outputs: Any, targets: Any) -> Any:
        """Of scores of which each rank has some characters', and of the experts."""
        scores, balance = outputs
        wrong = tr.vocab_parallel_cross_entropy(
            scores, targets, self.mesh["tp"], num_classes=len(self.text.alphabet)
        )
        return wrong + balance.sum() * BALANCED

    def step(self) -> None:
        """One update of the model."""
        size, context = self.options.batch, self.options.context
        batch = self.text.batch(len(self.losses), size, context, self.rows)
        self.optimizer.zero_grad()
        own = (nn.from_numpy(tr.context_shard(each, self.mesh["cp"])) for each in batch)
        self.losses.append(self.pipeline.step(*own))
        tr.clip_grad_norm_(self.pipeline.module, 1.0, self.mesh)
        self.optimizer.step()
        self.schedule.step()

    def state(self) -> dict[str, Any]:
        """What a checkpoint has."""
        return {
            "model": self.pipeline.module,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "losses": self.losses,
            "mesh": self.mesh,
        }

    def save(self, path: Path) -> None:
        """Each rank writes its part into a directory."""
        tr.checkpoint.Checkpointer(path).save(len(self.losses), self.state())

    def resume(self, path: Path) -> None:
        """Go on from the newest checkpoint in a directory, of whatever mesh."""
        loaded = tr.checkpoint.Checkpointer(path).load(self.state())
        if loaded is not None:
            self.losses = loaded.values["losses"]


def mesh_sizes(text: str) -> dict[str, int]:
    """pp=2,dp=2,tp=2 -> the sizes of these axes, of which those that are left out are 1."""
    sizes = {"pp": 1, "dp": 1, "cp": 1, "tp": 1, "ep": 1}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if name not in sizes or not size.lstrip("-").isdigit():
            raise argparse.ArgumentTypeError(f"{part!r}: give sizes for pp, dp, cp, tp and ep")
        sizes[name] = int(size)
    return sizes


def sample(training: Any, length: int) -> str:
    """Text that the model writes."""
    alphabet, context = training.text.alphabet, training.options.context
    generator = np.random.default_rng(training.options.seed)
    written = [alphabet.index("\n")]
    training.model.eval()
    for _ in range(length):
        odds = training.odds(np.array([written[-context:]]))
        written.append(int(generator.choice(len(alphabet), p=odds)))
    return "".join(alphabet[number] for number in written[1:])


def plot(losses: list[float], path: Path) -> None:
    """The loss of each step as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.plot(range(1, len(losses) + 1), losses)
    pyplot.xlabel("step")
    pyplot.ylabel("loss")
    pyplot.savefig(path)


def train(training: Any, options: argparse.Namespace) -> None:
    """All steps that are left, with a line and a checkpoint now and then."""
    tokens, last = options.batch * options.context, len(training.losses)
    begun = time.perf_counter()
    while len(training.losses) < options.steps:
        training.step()
        done = len(training.losses)
        if done % REPORT_EVERY and done < options.steps:
            continue
        speed = (done - last) * tokens / (time.perf_counter() - begun)
        line = f"step {done:5}  loss {training.losses[-1]:.4f}  {speed:,.0f} tokens/s"
        if not training.share.start:  # the first rank
            print(line, flush=True)
        if options.checkpoint:
            training.save(options.checkpoint)
        begun, last = time.perf_counter(), done


def check_begin(training: Any) -> None:
    """SystemExit on all ranks unless all begin at the same step."""
    if not tr.is_initialized():
        return
    begins = [0] * tr.get_world_size()
    tr.all_gather_object(begins, len(training.losses))
    if len({*begins}) > 1:
        raise SystemExit(
            f"the ranks would go on after steps {begins}: --checkpoint has to be on a disk that "
            f"all nodes see"
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--steps", type=int, default=500)
    add("--batch", type=int, default=16, help="pieces of text per step, of all ranks together")
    add("--context", type=int, default=128, help="characters that the model looks at")
    add("--layers", type=int, default=4)
    add("--heads", type=int, default=4)
    add("--embed", type=int, default=128, help="the width of the model")
    add("--experts", type=int, default=0, help="of each layer, in place of its MLP")
    add("--lr", type=float, default=1e-3)
    add("--seed", type=int, default=0)
    add("--compression", metavar="NAME", help="of gradients between ranks, such as powersgd:4")
    add(
        "--mesh",
        type=mesh_sizes,
        metavar="pp=2,dp=2,tp=2",
        help="stages, batches, parts of layers; cp=2: of pieces of text; ep=2: experts",
    )
    add("--check-nan", action="store_true", help="under torshrun: stop at NaN in gradients")
    add("--checkpoint", type=Path, help="save to this file, and go on from it if it is there")
    add("--sample", type=int, default=0, metavar="N", help="write N characters at the end")
    add("--plot", type=Path, metavar="FILE.png", help="draw the losses; needs matplotlib")
    options = parser.parse_args()
    if tr.is_torchelastic_launched():
        tr.init_process_group()
    elif options.experts:  # which are of a group, be it of one
        tr.init_process_group(rank=0, world_size=1)
    check(parser.error, options)
    return options


def check(error: Callable[[str], Any], options: argparse.Namespace) -> None:
    """error(text) for what does not go together, the same on all ranks."""
    ranks = tr.get_world_size() if tr.is_initialized() else 1
    if options.batch % ranks and not options.mesh:
        error(f"--batch {options.batch} cannot be shared by {ranks} ranks equally")
    if options.mesh and (ranks == 1 or options.sample or options.compression):
        error("--mesh is for several ranks, without --sample and --compression")
    if options.experts and ranks > 1 and not options.mesh:
        error("--experts on several ranks are for --mesh, such as dp=-1,ep=2")
    if options.experts and options.batch % MICROBATCHES:
        error(f"with --experts --batch {options.batch} has to be a multiple of {MICROBATCHES}")
    if options.mesh and options.mesh["ep"] != 1 and not options.experts:
        error("ep in --mesh is for --experts")
    if options.plot and not find_spec("matplotlib"):
        error("--plot needs matplotlib: pip install matplotlib")


def made(kind: Callable[[argparse.Namespace], Any], options: argparse.Namespace) -> Any:
    """The training. SystemExit for what it cannot do."""
    if kind is not Training and (options.mesh or options.experts):
        raise SystemExit("--mesh and --experts are for train_gpt.py")
    try:
        return MeshTraining(options) if options.mesh else kind(options)
    except tr.ConfigError as error:
        raise SystemExit(str(error)) from None


def main(kind: Callable[[argparse.Namespace], Any] = Training) -> None:
    options = parse_arguments()
    training = made(kind, options)
    if options.checkpoint and options.checkpoint.exists():
        training.resume(options.checkpoint)
        if training.losses and not training.share.start:
            print(f"resuming from {options.checkpoint} after step {len(training.losses)}")
    check_begin(training)
    train(training, options)
    if options.sample and not training.share.start:
        print(sample(training, options.sample))
    if options.plot and not training.share.start:
        plot(training.losses, options.plot)
    if tr.is_initialized():
        tr.destroy_process_group()


if __name__ == "__main__":
    main()

"""Defines RayIntegration, for training and tuning on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import ray

from torsh_runtime.comm.timeouts import seconds
from torsh_runtime.errors import BackendUnavailable, ConfigError
from torsh_runtime.integrations.ray.train import IS_V2, TorshConfig, TorshTrainer

SEARCHES = ("random", "optuna")
SCHEDULERS = ("fifo", "asha")
_ROUNDING = 1e-6
"""Tolerance with which three workers of 0.1 each fit a node that has 0.3 of a resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    """Configures the workers of a training on a Ray cluster."""

    num_workers: int = 1
    """Number of workers, each an actor and a rank."""
    cpus_per_worker: float = 1
    """Processors that Ray reserves for each worker."""
    gpus_per_worker: float = 0
    """GPUs that Ray reserves for each worker."""
    max_failures: int = 3
    """Number of restarts by Ray after failures; -1: unlimited."""
    storage_path: str | None = None
    """Path of results and checkpoints, which all nodes can access; None: Ray's own folder."""
    backend: str | None = None
    """The backend, as for init_process_group()."""
    timeout: float = 1800.0
    """Seconds for each operation and for connecting the ranks."""

    def __post_init__(self) -> None:
        for name, least in (("num_workers", 1), ("max_failures", -1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"{name} must be a whole number from {least} on, not {value!r}")
        for name in ("cpus_per_worker", "gpus_per_worker"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not value >= 0:
                raise ConfigError(f"{name} must be a number from 0 on, not {value!r}")
        if not self.resources:
            raise ConfigError(
                "cpus_per_worker and gpus_per_worker are both 0, and Ray places only workers that "
                "take some: give a fraction, such as cpus_per_worker=0.01"
            )
        seconds(self.timeout, self.timeout, "timeout")

    @property
    def resources(self) -> dict[str, float]:
        """Return the resources that each worker takes of its node."""
        wanted = {"CPU": self.cpus_per_worker, "GPU": self.gpus_per_worker}
        return {name: number for name, number in wanted.items() if number}


class RayIntegration:
    """Trains and tunes on the Ray cluster that ray.init() was given, or on a new one."""

    def __init__(self, config: RayConfig | None = None) -> None:
        self._config = config or RayConfig()

    def run_training(
        self,
        function: Callable[..., Any],
        train_config: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        **options: Any,
    ) -> Any:
        """Call the function on all workers, as ranks with a default group, and return Ray's Result.

        The function takes `train_config`, if there is one. It reports with ray.train.report(), and
        after a failure it resumes from ray.train.get_checkpoint().

        name: the name of Ray's run. options: further arguments of TorshTrainer, such as datasets.

        Raises ConfigError, before anything is started, if the cluster has too few places for the
        workers; ray.train's TrainingFailedError when max_failures is used up.
        """
        self._check_places()
        return self._trainer(function, train_config, name, **options).fit()

    def run_tuning(
        self,
        function: Callable[..., Any],
        param_space: Mapping[str, Any],
        *,
        metric: str,
        mode: str = "min",
        num_samples: int = 10,
        search: str = "random",
        scheduler: str = "fifo",
        seed: int | None = None,
        name: str | None = None,
    ) -> Any:
        """Train once for each sample of `param_space`, and return Ray's ResultGrid.

        Each training has num_workers workers. As many run at once as the cluster has places for.

        param_space: values and ray.tune's distributions; a sample is the function's train_config.
        metric, mode: the value of ray.train.report() to minimize ("min") or maximize ("max").
        search: "random", or "optuna", which uses the results of earlier samples.
        scheduler: "fifo" completes all trainings; "asha" stops those early that are behind at their
            step.
        num_samples: with ray.tune.grid_search(), how often the whole grid is tried.
        seed: the seed of the samples.

        Raises ConfigError like run_training() and for unknown names, BackendUnavailable without
        Optuna.
        """
        tune = import_module("ray.tune")
        _check_name("mode", mode, ("min", "max"))
        if type(num_samples) is not int or num_samples < 1:
            raise ConfigError(f"num_samples must be a whole number from 1 on, not {num_samples!r}")
        search_alg, trial_scheduler = _search(search, seed), _scheduler(scheduler)
        at_once = self._check_places()
        tuner = tune.Tuner(
            self._trial(function),
            param_space=dict(param_space) if IS_V2 else {"train_loop_config": dict(param_space)},
            tune_config=tune.TuneConfig(
                metric=metric,
                mode=mode,
                num_samples=num_samples,
                search_alg=search_alg,
                scheduler=trial_scheduler,
                max_concurrent_trials=at_once,
            ),
            run_config=tune.RunConfig(name=name, storage_path=self._config.storage_path),
        )
        return tuner.fit()

    def _trial(self, function: Callable[..., Any]) -> Any:
        """Return the trainable that Tune calls with a sample."""
        if not IS_V2:
            return self._trainer(function, {}, None)

        def trial(sample: dict[str, Any]) -> None:
            report = import_module("ray.tune.integration.ray_train").TuneReportCallback()
            name = import_module("ray.tune").get_context().get_trial_id()
            self._trainer(function, sample, f"trial-{name}", callbacks=[report]).fit()

        # It only waits for its workers, which hold the processors, but Ray demands a resource.
        return import_module("ray.tune").with_resources(trial, {"memory": 1})

    def _trainer(
        self,
        function: Callable[..., Any],
        train_config: Mapping[str, Any] | None,
        name: str | None,
        callbacks: list[Any] | None = None,
        **options: Any,
    ) -> Any:
        train, config = import_module("ray.train"), self._config
        return TorshTrainer(
            function,
            train_loop_config=None if train_config is None else dict(train_config),
            torsh_config=TorshConfig(config.backend, config.timeout),
            scaling_config=train.ScalingConfig(
                num_workers=config.num_workers,
                use_gpu=config.gpus_per_worker > 0,
                resources_per_worker=config.resources,
                **({} if IS_V2 else {"trainer_resources": {"CPU": 0}}),
            ),
            run_config=train.RunConfig(
                name=name,
                storage_path=config.storage_path,
                failure_config=train.FailureConfig(max_failures=config.max_failures),
                callbacks=callbacks,
            ),
            **options,
        )

    def _check_places(self) -> int:
        """Return how many trainings can run at once. Raises ConfigError if none can."""
        if not ray.is_initialized():
            ray.init()
        need = self._config.resources
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        places = [_fitting(node, need) for node in nodes]
        if sum(places) < self._config.num_workers:
            raise ConfigError(
                f"{self._config.num_workers} workers of {_shown(need)} each were asked for, and "
                f"the Ray cluster has places for {sum(places)}, on {len(nodes)} node(s): add "
                f"nodes, or ask for fewer"
            )
        return sum(places) // self._config.num_workers


def _fitting(node: Mapping[str, float], need: Mapping[str, float]) -> int:
    """Return how many workers fit on a node."""
    return min(int(node.get(name, 0) / number + _ROUNDING) for name, number in need.items())


def _shown(need: Mapping[str, float]) -> str:
    return " and ".join(f"{number:g} {name}" for name, number in need.items())


def _search(name: str, seed: int | None) -> Any:
    _check_name("search", name, SEARCHES)
    if name == "random":
        return import_module("ray.tune.search.basic_variant").BasicVariantGenerator(
            random_state=seed
        )
    if find_spec("optuna") is None:
        raise BackendUnavailable("search='optuna'", "Install Optuna: `pip install optuna`.")
    return import_module("ray.tune.search.optuna").OptunaSearch(seed=seed)


def _scheduler(name: str) -> Any:
    _check_name("scheduler", name, SCHEDULERS)
    schedulers = import_module("ray.tune.schedulers")
    return schedulers.ASHAScheduler() if name == "asha" else schedulers.FIFOScheduler()


def _check_name(what: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise ConfigError(f"{what} is {name!r}; it must be one of {', '.join(known)}")

"""The same work with PyTorch's DistributedDataParallel over gloo, one process a replica."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks import problems
from benchmarks.problems import Problem
from benchmarks.timing import Step
from benchmarks.worker import Assignment


class Model(torch.nn.Module):
    """Any of the models, over the parameters in their order."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.from_numpy(array.copy())) for array in problem.params]
        )
        self._loss = {"mlp": _mlp, "transformer": _transformer, "squares": _squares}[problem.model]

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        """The sum of the losses of the examples."""
        return self._loss(list(self.weights), *batch)


def _mlp(params: list[Any], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for weights, bias in zip(params[0:-2:2], params[1:-2:2], strict=True):
        x = torch.relu(torch.addmm(bias, x, weights))
    return functional.cross_entropy(torch.addmm(params[-1], x, params[-2]), y, reduction="sum")


def _squares(params: list[Any], x: torch.Tensor) -> torch.Tensor:
    squares = torch.stack([p * p for p in params]).sum(0)
    return torch.log1p(x @ squares).sum()


def _transformer(params: list[Any], tokens: torch.Tensor) -> torch.Tensor:
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    width = (problems.WIDTH,)
    x = functional.embedding(inputs, params[0]) + params[1]
    for start in range(2, len(params) - 3, 10):
        scale, bias, qkv, out, scale_2, bias_2, up, up_bias, down, down_bias = params[
            start : start + 10
        ]
        x = x + _attention(functional.layer_norm(x, width, scale, bias, 1e-6) @ qkv) @ out
        normed = functional.layer_norm(x, width, scale_2, bias_2, 1e-6)
        x = x + functional.gelu(normed @ up + up_bias, approximate="tanh") @ down + down_bias
    logits = functional.layer_norm(x, width, params[-3], params[-2], 1e-6) @ params[-1]
    losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    return losses / problems.LENGTH


def _attention(qkv: torch.Tensor) -> torch.Tensor:
    batch, length, _ = qkv.shape
    q, k, v = qkv.view(batch, length, 3, problems.HEADS, -1).permute(2, 0, 3, 1, 4)
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).reshape(batch, length, -1)


def _optimizer(problem: Problem, params: Any) -> torch.optim.Optimizer:
    if problem.optimizer == "adam":
        b1, b2, eps = problems.ADAM.values()
        return torch.optim.Adam(params, problem.rate, (b1, b2), eps)
    momentum = problems.MOMENTUM if problem.optimizer == "momentum" else 0.0
    return torch.optim.SGD(params, problem.rate, momentum)


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.int64) if array.dtype.kind == "i" else array.copy())


def train(assignment: Assignment, variant: str) -> Step:
    """W2, W3, W4 and W7."""
    rank, count = assignment.rank, assignment.processes
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // count))
    problem = problems.problem_of(assignment.workload, variant)
    model: Any = Model(problem)
    if count > 1:
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group(
                "gloo", init_method=f"tcp://{assignment.address}", rank=rank, world_size=count
            )
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = _optimizer(problem, model.parameters())
    batch = [_tensor(np.split(array, count)[rank]) for array in problem.batch]
    # DDP takes the mean over the replicas, so each one's loss is the mean of its own share.
    size = problem.num_examples / count

    def run() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(*batch) / size
        loss.backward()
        optimizer.step()
        return loss.detach()

    read: Callable[[torch.Tensor], float] = lambda loss: float(loss) / count  # noqa: E731
    return Step(run, read)


STEPS = {"W2": train, "W3": train, "W4": train, "W7": train}

"""Averages of weights and of batch-norm statistics, against plain arithmetic."""

import torch
from torch import nn

from nnstretch.training.loop.averaging import WeightAverage, recompute_batch_norms


def test_the_average_is_the_recurrence_written_out() -> None:
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 1.0)
    average = WeightAverage(module, decay=0.5)
    expected = 1.0
    for step, value in enumerate((2.0, -1.0, 4.0, 8.0, 3.0, 5.0, 7.0, 1.0, 0.0, 6.0)):
        nn.init.constant_(module.weight, value)
        average.update()
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
        torch.testing.assert_close(average.state["weight"], torch.tensor([[expected]]))
    assert float(module.weight.detach()) == 6.0


def test_statistics_are_averaged_and_counters_copied() -> None:
    norm = nn.BatchNorm1d(2)
    average = WeightAverage(norm, decay=0.9)
    norm(torch.randn(8, 2) + 5)
    average.update()
    assert norm.running_mean is not None
    torch.testing.assert_close(average.state["running_mean"], 0.9 * norm.running_mean)
    assert int(average.state["num_batches_tracked"]) == 1


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.9), nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2)
    )


def test_recomputed_statistics_are_those_of_the_data() -> None:
    module = network()
    module.train()
    module[4].eval()
    module(torch.randn(4, 1, 8, 8) * 100)  # statistics to be forgotten
    data = [torch.randn(6, 1, 8, 8) + 2 for _ in range(3)]
    recompute_batch_norms(module, data)
    assert [layer.training for layer in module] == [True, True, True, True, False, True]
    assert module[1].momentum == 0.1

    norm = module[1]
    assert isinstance(norm, nn.BatchNorm2d)
    with torch.no_grad():
        inputs = [module[0](batch) for batch in data]
        second = [  # dropout is off while statistics are taken
            module[4](torch.relu(nn.functional.batch_norm(x, None, None, norm.weight, norm.bias, training=True)))
            for x in inputs
        ]
    for norm, seen in ((module[1], inputs), (module[5], second)):
        torch.testing.assert_close(norm.running_mean, torch.stack([x.mean((0, 2, 3)) for x in seen]).mean(0))
        torch.testing.assert_close(norm.running_var, torch.stack([x.var((0, 2, 3)) for x in seen]).mean(0))


def test_a_module_without_batch_norms_reads_no_data() -> None:
    def refuse() -> torch.Tensor:
        raise AssertionError("data was read")

    recompute_batch_norms(nn.Linear(2, 2), (refuse() for _ in range(1)))

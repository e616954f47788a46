"""The halves of tests that run inside the PyTorch environment (see conftest.in_torch)."""

from __future__ import annotations


def describe(name: str, size: int) -> dict:
    """Return parameters, shape of the logits, and multiply-adds of one sample's forward pass as counted by torch."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from models import catalog, pytorch

    network = pytorch.build(catalog.network(name).layers(3, 10, size), 0)
    with FlopCounterMode(display=False) as counter:
        logits = network(torch.randn(2, 3, size, size))
    return {
        "parameters": sum(p.numel() for p in network.parameters()),
        "logits": list(logits.shape),
        # torch counts 2 per multiply-add, for two samples.
        "multiply_adds": counter.get_total_flops() // 4,
    }


def describe_text(name: str, vocabulary: int, context: int, others: list) -> dict:
    """Return the shape of the logits, the mean loss of random tokens, FLOPs of one sample's forward pass as counted by
    torch, and the tokens whose logits change with the last token; and the parameters of this and other networks, from
    modules without memory."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from models import catalog, pytorch

    network = pytorch.build(catalog.network(name).layers(0, vocabulary, context), 0)
    tokens = torch.randint(vocabulary, (2, context), generator=torch.Generator().manual_seed(0))
    # torch counts nothing in the CPU's fused attention; this one is two products.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        network(tokens)
    with torch.no_grad():
        logits = network(tokens)
        tokens[:, -1] = (tokens[:, -1] + 1) % vocabulary
        changed = (network(tokens) - logits).abs().amax(dim=(0, 2)) > 1e-6
    parameters = {}
    for other in (name, *others):
        with torch.device("meta"):
            modules = pytorch._sequence(catalog.network(other).layers(0, vocabulary, context))
        parameters[other] = sum(p.numel() for p in modules.parameters())
    return {
        "parameters": parameters,
        "logits": list(logits.shape),
        "flops": counter.get_total_flops() // 2,  # of two samples
        "changed": changed.nonzero().flatten().tolist(),
        "loss": float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())),
    }


def saved_for_backward(cases: list) -> list:
    """Return the bytes that autograd keeps in forward for each (model, fields of the data set, precision, batch):
    distinct storages, without those of the network's own parameters and statistics."""
    import numpy as np
    import torch
    from builders import SYNTHETIC, make_site, make_spec

    from harness.core.rendezvous import Rendezvous
    from harness.core.spec import DatasetSpec
    from harness.worker.pytorch.adapter import Adapter
    from harness.worker.pytorch.strategies.base import cross_entropy

    found = []
    for model, changes, precision, batch in cases:
        data = DatasetSpec(**{**vars(SYNTHETIC), **changes})
        run = {"gpus": 1, "global_batch": batch, "batch_per_gpu": batch, "precision": precision}
        spec = make_spec(model=model, dataset=data, strategy="plain", strategy_options={}, **run)
        adapter = Adapter(spec, make_site(), Rendezvous(0, 1, 0, 1, "127.0.0.1", 29558), iter(()))
        samples = np.random.RandomState(0).randint(0, 256, (batch, *data.sample_shape)).astype(np.uint8)
        labels = np.zeros((batch, data.context) if data.context else batch, np.int64)
        inputs, labels = adapter.to_device(samples, labels)
        ours = {t.untyped_storage().data_ptr() for t in (*adapter.parameters, *adapter.plain_network.buffers())}
        kept = {}

        def keep(tensor, ours=ours, kept=kept):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in ours:
                kept[storage.data_ptr()] = storage  # kept alive, so that no other takes its address
            return tensor

        half = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), half:
            cross_entropy(adapter.network(inputs), labels)
        found.append(sum(storage.nbytes() for storage in kept.values()))
    return found


def refuses_cpu_instead_of_gpu() -> str:
    """Return the message for a run that requests CUDA if torch has none."""
    import dataclasses

    from builders import make_spec

    from harness.worker.pytorch import device

    spec = make_spec()
    try:
        device.of(dataclasses.replace(spec, cluster=dataclasses.replace(spec.cluster, device="cuda")))
    except RuntimeError as error:
        return str(error)
    return "accepted"


def step_by_hand() -> dict:
    """Compare steps of a single adapter with the same steps written with torch's functions only; return the largest
    difference of the weights after three."""
    import dataclasses
    import itertools

    import numpy as np
    import torch
    from builders import make_site, make_spec

    from harness.core.rendezvous import Rendezvous
    from harness.worker.pytorch.adapter import Adapter
    from models import catalog
    from models import pytorch as networks

    spec = make_spec(gpus=1, global_batch=8, batch_per_gpu=8)
    spec = dataclasses.replace(
        spec, optimizer=dataclasses.replace(spec.optimizer, lr=0.004, lr_batch=32, nesterov=True)
    )
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (8, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, 8)

    adapter = Adapter(spec, make_site(), Rendezvous(0, 1, 0, 1, "127.0.0.1", 29555), itertools.repeat((images, labels)))
    for _ in range(3):
        adapter.step()
    ours = [torch.from_numpy(array) for array in adapter.weights()]
    adapter.close()

    network = networks.build(catalog.network(spec.model).layers(3, 10, 32), spec.seed).to(
        memory_format=torch.channels_last
    )
    # Linear rule: 0.004 for 32 samples is 0.001 for 8. Small, so that three steps on noise do not amplify rounding.
    optimizer = torch.optim.SGD(network.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-4, nesterov=True)
    x = (torch.tensor(images).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(x), torch.tensor(labels)).backward()
        optimizer.step()
    return {"difference": max(float((a - b).abs().max()) for a, b in zip(ours, network.parameters()))}


def optimizer_by_hand(name: str) -> float:
    """Return the largest difference of arrays after four steps of an optimiser from its paper's formulas in NumPy."""
    import numpy as np
    import torch

    from harness.core.spec import OptimizerSpec
    from harness.worker.pytorch import optimizers

    rng = np.random.default_rng(0)
    shapes = [(4, 3, 3), (5,), (2, 2)]  # one-dimensional: a bias
    expected = [rng.standard_normal(shape) for shape in shapes]
    expected[2][:] = 0.0  # LARS cannot scale by a norm of 0
    weights = [torch.nn.Parameter(torch.tensor(array)) for array in expected]
    momentum = 0.0 if name == "adam" else 0.9
    spec = OptimizerSpec(name=name, momentum=momentum, weight_decay=0.01, beta1=0.8, beta2=0.9, epsilon=0.1, trust=0.02)
    of, settings = optimizers.of(spec, lr=1.0)
    optimizer = of(weights, **settings)
    first, second = ([np.zeros(shape) for shape in shapes] for _ in range(2))
    for step, lr in enumerate((0.1, 0.2, 0.05, 0.05)):
        optimizer.param_groups[0]["lr"] = lr
        for i, weight in enumerate(weights):
            g = rng.standard_normal(shapes[i])
            weight.grad = torch.tensor(g)
            w, m, v = expected[i], first[i], second[i]
            decayed = g + 0.01 * w
            if name == "adam":  # Kingma and Ba 2015, algorithm 1
                m[:] = 0.8 * m + 0.2 * decayed
                v[:] = 0.9 * v + 0.1 * decayed**2
                w -= lr * (m / (1 - 0.8 ** (step + 1))) / (np.sqrt(v / (1 - 0.9 ** (step + 1))) + 0.1)
            elif name == "lars":  # You et al. 2017, algorithm 1
                norm = np.linalg.norm(w)
                scaled = w.ndim > 1 and norm > 0
                rate = 0.02 * norm / (np.linalg.norm(g) + 0.01 * norm) if scaled else 1.0
                m[:] = 0.9 * m + lr * rate * decayed
                w -= m
            else:
                m[:] = 0.9 * m + decayed
                w -= lr * m
        optimizer.step()
    return max(float(np.abs(a - w.detach().numpy()).max()) for a, w in zip(expected, weights))


def optimizer_continues(name: str, text: bool = False) -> bool:
    """Return whether four steps are equal, bit for bit, with the state saved and loaded after the second."""
    import dataclasses
    import itertools
    import tempfile
    from pathlib import Path

    import numpy as np
    from builders import TEXT, make_site, make_spec

    from harness.core.rendezvous import Rendezvous
    from harness.worker.pytorch.adapter import Adapter

    spec = make_spec(gpus=1, global_batch=8, batch_per_gpu=8, strategy="plain", strategy_options={})
    spec = dataclasses.replace(spec, optimizer=dataclasses.replace(spec.optimizer, name=name, warmup_steps=8))
    rng = np.random.default_rng(0)
    batch = (rng.integers(0, 256, (8, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, 8))
    if text:
        spec = dataclasses.replace(spec, model="gpt_tiny", dataset=TEXT)
        batch = (rng.integers(0, 256, (8, 24), dtype=np.uint8), rng.integers(0, 256, (8, 24)))

    def adapter() -> Adapter:
        return Adapter(spec, make_site(), Rendezvous(0, 1, 0, 1, "127.0.0.1", 29557), itertools.repeat(batch))

    uncut, cut, continued = adapter(), adapter(), adapter()
    for _ in range(4):
        uncut.step()
    for _ in range(2):
        cut.step()
    with tempfile.TemporaryDirectory() as folder:
        cut.save(Path(folder))
        continued.load(Path(folder))
    for _ in range(2):
        continued.step()
    return all(np.array_equal(a, b) for a, b in zip(uncut.weights(), continued.weights()))


def logits_and_torch() -> list:
    """Return the largest difference of the adapter's logits from the network's own after a step, and whether the
    network is in training mode afterwards."""
    import itertools

    import numpy as np
    import torch
    from builders import make_site, make_spec

    from harness.core.rendezvous import Rendezvous
    from harness.worker.pytorch.adapter import Adapter

    spec = make_spec(gpus=1)
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (37, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, 37)
    adapter = Adapter(spec, make_site(), Rendezvous(0, 1, 0, 1, "127.0.0.1", 29556), itertools.repeat((images, labels)))
    adapter.step()
    ours = adapter.logits(images)
    training = adapter.plain_network.training
    network = adapter.plain_network.eval()
    with torch.no_grad():
        x = (torch.tensor(images).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
        expected = network(x).numpy()
    adapter.close()
    return [float(np.abs(ours - expected).max()), training]


def traces(folder: str) -> list:
    """Return the events of traces of one rank: normal; with a file in the way of its profiler's folder; and with a
    folder in place of the trace. Each in its own attempt below `folder`."""
    import itertools
    from pathlib import Path

    import numpy as np
    from builders import make_site, make_spec

    from harness.core.events import EventWriter, read_events
    from harness.core.rendezvous import Rendezvous
    from harness.worker import profiler_ranges
    from harness.worker.pytorch.adapter import Adapter
    from harness.worker.record import trace

    alone = {"gpus": 1, "global_batch": 2, "batch_per_gpu": 2, "strategy": "plain", "strategy_options": {}}
    spec = make_spec(model="cnn_small", trace="chrome", trace_steps=1, **alone)
    batches = itertools.repeat((np.zeros((2, 32, 32, 3), np.uint8), np.zeros(2, np.int64)))
    adapter = Adapter(spec, make_site(), Rendezvous(0, 1, 0, 1, "127.0.0.1", 29556), batches)
    found = []
    for name in ("plain", "in_the_way", "no_place"):
        attempt = Path(folder) / name
        attempt.mkdir()
        if name == "in_the_way":
            (attempt / ".trace.rank0").touch()
        if name == "no_place":
            (attempt / "trace.rank0.json.gz").mkdir()
        log = EventWriter(attempt / "events.rank0.jsonl", 0)
        trace.take(spec, adapter, adapter.step, 0, attempt, log)
        log.close()
        found += read_events(attempt / "events.rank0.jsonl").events
    assert profiler_ranges.span("after") is profiler_ranges.span("another"), "nothing shows ranges any more"
    assert adapter.steps == 3, "as many steps, whatever the profiler does"
    return found


def recipe_by_hand() -> dict:
    """Compare steps with larger ones for BatchNorm's biases, and slow weights, with the formulas on arrays: largest
    difference of weights and running means after eight steps. And whether steps resume, bit for bit, from a checkpoint
    after the third, in the middle of a group of two."""
    import tempfile
    from pathlib import Path

    import numpy as np
    import torch
    from builders import make_site, make_spec

    from harness.core.rendezvous import Rendezvous
    from harness.core.spec import OptimizerSpec
    from harness.worker.pytorch.adapter import Adapter
    from harness.worker.pytorch.strategies.base import cross_entropy

    rule = {"lr": 0.002, "lr_rule": "constant", "momentum": 0.8, "nesterov": True, "weight_decay": 0.01}
    course = {"lr_peak_samples": 16, "lr_end_samples": 64, "lr_start_factor": 0.2, "lr_end_factor": 0.1}
    beside = {"norm_bias_factor": 64.0, "lookahead_steps": 2, "lookahead_decay": 0.7}
    alone = {"gpus": 1, "global_batch": 8, "batch_per_gpu": 8, "strategy": "plain", "strategy_options": {}}
    spec = make_spec(model="airbench94", optimizer=OptimizerSpec(**rule, **course, **beside), **alone)
    random = np.random.default_rng(0)
    batches = [(random.integers(0, 256, (8, 32, 32, 3), np.uint8), random.integers(0, 10, 8)) for _ in range(8)]
    kernel = random.standard_normal((24, 3, 2, 2)).astype(np.float32) / 4

    def adapter(first: int = 0) -> Adapter:
        made = Adapter(spec, make_site(), Rendezvous(0, 1, 0, 1, "127.0.0.1", 29559), iter(batches[first:]))
        made.whiten(kernel)
        return made

    ours, network = adapter(), adapter().plain_network
    for _ in range(8):
        ours.step()
    weights = dict(network.named_parameters())
    biases = {f"{name}.bias" for name, module in network.named_modules() if isinstance(module, torch.nn.BatchNorm2d)}
    kept = {name: value for name, value in network.state_dict().items() if name in weights or "running" in name}
    velocity = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    slow = {name: value.clone() for name, value in kept.items()}
    for step, (images, labels) in enumerate(batches):
        # Up from a fifth over the first two steps, down to a tenth until the eighth, each taken at its middle.
        rate = 0.002 * min(0.2 + 0.8 * (step + 0.5) / 2, 0.1 + 0.9 * (7.5 - step) / 6)
        network.zero_grad()
        pixels = (torch.tensor(images).permute(0, 3, 1, 2).float() - 127.5) / 63.75
        cross_entropy(network(pixels.contiguous(memory_format=torch.channels_last)), torch.tensor(labels)).backward()
        with torch.no_grad():
            for name, weight in weights.items():
                factor = 64.0 if name in biases else 1.0
                gradient = weight.grad + 0.01 / factor * weight
                velocity[name] = 0.8 * velocity[name] + gradient
                weight -= rate * factor * (gradient + 0.8 * velocity[name])
            if step % 2:
                stays = 0.7 * ((step + 1) / 8) ** 3
                for name, value in kept.items():
                    slow[name] = stays * slow[name] + (1 - stays) * value
                    value.copy_(slow[name])
    found = ours.plain_network.state_dict()
    with tempfile.TemporaryDirectory() as folder:
        cut = adapter()
        for _ in range(3):
            cut.step()
        cut.save(Path(folder))
        continued = adapter(3)
        continued.load(Path(folder))
        for _ in range(5):
            continued.step()
    same = [torch.equal(value, found[name]) for name, value in continued.plain_network.state_dict().items()]
    start = adapter().plain_network.state_dict()
    return {
        "apart": max(float((found[name] - value).abs().max()) for name, value in kept.items()),
        "moved": max(float((found[name] - start[name]).abs().max()) for name in kept),
        "kernel": bool(np.array_equal(found["0.kernel"].numpy(), kernel)),
        "continues": all(same),
        "biases": len(biases),
    }

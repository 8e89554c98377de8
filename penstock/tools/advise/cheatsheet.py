"""One page each: symptoms with their technique, layers with their faults, the loop that finds the next bottleneck."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Remedy:
    """A row of the cheat sheet."""

    symptom: str
    technique: str
    layer: str
    parameter: str


@dataclass(frozen=True, slots=True)
class LayerFault:
    """A row of the layers: mend a fault in the layer that has authority over it."""

    layer: str
    name: str
    fault: str
    look_at: str


@dataclass(frozen=True, slots=True)
class LoopStep:
    title: str
    text: str


REMEDIES = (
    Remedy("queue full, device idle", "continuous batching", "L4b", "--batching --max-sequences"),
    Remedy("prompts stall streams", "chunked prefill", "L4b", "--max-batch-tokens"),
    Remedy("long TTFT, prompts begin alike", "prefix cache", "L4b", "--prefix-caching, order of the prompt"),
    Remedy(
        "KV full, sequences preempted", "KV in 8 bits, more room, offload", "L4b", "--kv --num-blocks --memory-fraction"
    ),
    Remedy("random spikes", "order of admission, preemption", "L4b", "--order"),
    Remedy("slow tokens, small batch", "speculation, fewer bytes", "L3", "drafts, --weights fp8"),
    Remedy("too large for a device; for a machine", "tensor parallel; pipeline", "L0+L3", "--tensor; --pipeline"),
    Remedy("small model, rate too low", "replicas", "L3+L4a", "--replicas"),
    Remedy("one replica full, others idle", "routing", "L4a", "--policy"),
    Remedy("requests dropped in bursts", "admission", "L4a, L5", "--max-waiting --max-waiting-tokens"),
    Remedy("one tenant starves others", "caps, fairness", "L5", "keys, --order fair"),
    Remedy("history sent again each turn", "sessions, cache", "L6", "client"),
)

LAYERS = (
    LayerFault("L0", "silicon, links", "busy yet slow", "MBU, MFU"),
    LayerFault("L1", "driver, CUDA, collectives", "version refused, hang", "penstock doctor"),
    LayerFault("L2", "image, libraries", "works here, crashes there", "versions by node"),
    LayerFault("L3", "engine: weights, kernels, KV memory", "out of memory at once", "memory ledger, steps"),
    LayerFault("L4a", "routing", "idle beside a queue", "queues, reasons of the router"),
    LayerFault("L4b", "batching", "jitter of p99", "steps, KV map"),
    LayerFault("L5", "gateway: limits, keys", "memory fills by and by", "refusals, tenants"),
    LayerFault("L6", "client: context, retries", "prompts computed again, storms of retries", "cached share, aborts"),
)

LOOP = (
    LoopStep(
        "Which resource saturates",
        "compute at 60-90 % (decode: MBU 80-95 %), memory at 80-90 %, network below 70 %, a queue that does not grow",
    ),
    LoopStep("Which layer", "the one that has authority over the fault"),
    LoopStep("Which technique", "one row of the cheat sheet, one variable at a time"),
    LoopStep("Measure", "p50-p99, goodput and $ a million tokens before and after: penstock bench compare"),
    LoopStep(
        "Again",
        "the bottleneck has moved (batching, memory, bandwidth, queue, network); done when all sit at 80-90 % within the SLO",
    ),
)


def cheatsheet_data() -> dict[str, Any]:
    return {
        "remedies": [asdict(one) for one in REMEDIES],
        "layers": [asdict(one) for one in LAYERS],
        "loop": [asdict(one) for one in LOOP],
    }

"""What a machine can do to a server: rules over signs of processors, containers, memory and GPUs. Causes of what others see."""

from penstock.amounts import format_bytes
from penstock.tools.doctor.finding import ServiceLayer, Verdict
from penstock.tools.doctor.rule import Rule

HOST_RULES: tuple[Rule, ...] = (
    Rule(
        id="gpu-xid",
        layer=ServiceLayer.L1,
        verdict=Verdict.FAULT,
        weight=97,
        symptom="the GPU driver reports faults",
        condition=lambda signs: signs.gpu_xid_errors > 0,
        evidence=lambda signs: f"{signs.gpu_xid_errors:.0f} Xid events since the server began",
        remedy="read them (dmesg | grep Xid): 48, 63, 79 and 95 ask for another GPU; restart the server on one",
    ),
    Rule(
        id="gpu-ecc",
        layer=ServiceLayer.L0,
        verdict=Verdict.FAULT,
        weight=95,
        symptom="the GPU's memory makes errors that cannot be corrected",
        condition=lambda signs: signs.gpu_ecc_errors > 0,
        evidence=lambda signs: f"{signs.gpu_ecc_errors:.0f} since it was reset",
        remedy="take the GPU out of service, reset it (nvidia-smi -r) and have it replaced if errors come back",
    ),
    Rule(
        id="throttled",
        layer=ServiceLayer.L0,
        verdict=Verdict.WARNING,
        weight=89,
        symptom="the container runs out of processor time",
        condition=lambda signs: signs.throttled_fraction > 0.05,
        evidence=lambda signs: f"in {100 * signs.throttled_fraction:.0f} % of periods it stood still",
        remedy="raise the container's CPU limit, or compute with fewer threads (OMP_NUM_THREADS)",
    ),
    Rule(
        id="stolen",
        layer=ServiceLayer.L0,
        verdict=Verdict.WARNING,
        weight=87,
        symptom="the hypervisor gives this machine's processors to others",
        condition=lambda signs: signs.stolen_fraction > 0.05,
        evidence=lambda signs: f"{100 * signs.stolen_fraction:.0f} % of processor time was stolen",
        remedy="move to a machine with processors of its own (dedicated, not shared or burstable)",
    ),
    Rule(
        id="swapping",
        layer=ServiceLayer.L0,
        verdict=Verdict.WARNING,
        weight=85,
        symptom="memory is swapped while it serves",
        condition=lambda signs: signs.swapped_per_s > 50,
        evidence=lambda signs: f"{signs.swapped_per_s:,.0f} pages a second",
        remedy="free memory or lower --memory-fraction and --kv-memory: weights that are swapped out cost seconds a token",
    ),
    Rule(
        id="gpu-hot",
        layer=ServiceLayer.L0,
        verdict=Verdict.WARNING,
        weight=83,
        symptom="the GPU is held down because it is hot",
        condition=lambda signs: signs.gpu_thermal_limited > 0,
        evidence=lambda signs: "its clocks are limited by temperature",
        remedy="see to its cooling: fans, dust, a full rack; until then a lower power limit (nvidia-smi -pl) keeps it even",
    ),
    Rule(
        id="gpu-pcie",
        layer=ServiceLayer.L1,
        verdict=Verdict.WARNING,
        weight=81,
        symptom="the GPU has fewer lanes to the host than it could",
        condition=lambda signs: signs.gpu_pcie_fraction < 0.75,
        evidence=lambda signs: f"{100 * signs.gpu_pcie_fraction:.0f} % of its PCIe width",
        remedy="reseat the card or use a slot with all its lanes; loading and swapping are slow until then",
    ),
    Rule(
        id="gpu-shared",
        layer=ServiceLayer.L0,
        verdict=Verdict.WARNING,
        weight=79,
        symptom="other programs hold memory of the GPU",
        condition=lambda signs: signs.gpu_other_bytes > 1 << 30,
        evidence=lambda signs: f"{format_bytes(int(signs.gpu_other_bytes))} belongs to others",
        remedy="stop them (nvidia-smi names them), or give this server a GPU of its own (CUDA_VISIBLE_DEVICES)",
    ),
    Rule(
        id="neighbours",
        layer=ServiceLayer.L0,
        verdict=Verdict.WARNING,
        weight=77,
        symptom="other programs use this machine's processors",
        condition=lambda signs: signs.others_fraction > 0.2 and signs.waited_per_s > 0.1,
        evidence=lambda signs: (
            f"{100 * signs.others_fraction:.0f} % of processor time went to them; threads of this server waited "
            f"{signs.waited_per_s:.2f} s for a processor in every second"
        ),
        remedy="stop what else computes here (top names it), or give the server cores of its own (taskset)",
    ),
    Rule(
        id="remote-memory",
        layer=ServiceLayer.L0,
        verdict=Verdict.WARNING,
        weight=62,
        symptom="memory lies on another node than the processors",
        condition=lambda signs: signs.remote_fraction > 0.2,
        evidence=lambda signs: f"{100 * signs.remote_fraction:.0f} % of new pages",
        remedy="bind the server to the processors and the memory of one node with numactl",
    ),
    Rule(
        id="governor",
        layer=ServiceLayer.L0,
        verdict=Verdict.WARNING,
        weight=61,
        symptom="the processors save power",
        condition=lambda signs: signs.slow_governor > 0.5,
        evidence=lambda signs: f"{100 * signs.slow_governor:.0f} % of them run under a saving governor",
        remedy="set it to performance: cpupower frequency-set -g performance",
    ),
    Rule(
        id="gpu-power",
        layer=ServiceLayer.L0,
        verdict=Verdict.WARNING,
        weight=34,
        symptom="the GPU is at its power limit",
        condition=lambda signs: signs.gpu_power_limited > 0,
        evidence=lambda signs: "its clocks are limited by power",
        remedy="usual under long prompts; if the limit was lowered raise it (nvidia-smi -pl), or take --weights fp8",
    ),
    Rule(
        id="small-steps",
        layer=ServiceLayer.L4,
        verdict=Verdict.WARNING,
        weight=73,
        symptom="prompts are cut into many small steps",
        condition=lambda signs: (
            signs.max_batch_tokens < 0.25 * signs.prompt_mean_tokens * (1.0 - signs.hit_fraction)
            and signs.prefill_mean_s > 0.2
        ),
        evidence=lambda signs: (
            f"steps of {signs.max_batch_tokens:,.0f} tokens for prompts of {signs.prompt_mean_tokens:,.0f}"
        ),
        remedy="raise --max-batch-tokens, or leave it out: the default is what the device computes in time",
    ),
    Rule(
        id="wide-weights",
        layer=ServiceLayer.L3,
        verdict=Verdict.WARNING,
        weight=51,
        symptom="weights are held in 32 bits",
        condition=lambda signs: signs.weight_bits > 24.0 and signs.output_tokens_per_s > 0.0,
        evidence=lambda signs: f"{signs.weight_bits:.0f} bits a parameter: every step reads twice what bfloat16 would",
        remedy="serve without --dtype float32, or a quantized file with --weights packed",
    ),
)
"""Heavier than the symptoms they cause."""

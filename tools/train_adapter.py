"""Trains a small LoRA adapter on the default model with peft, on a CPU, in a minute or two (dev extra).

    python -m tools.train_adapter OUT [--rank 8] [--steps 40] [--word penstock]

The adapter makes the model answer every question with a word. It is a recipe to begin from, and what the tests serve.
"""

import argparse
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from penstock.runtime.formats.hub import default_cache, resolve

QUESTIONS = (
    "What is a turbine?",
    "Name a fruit.",
    "Who wrote Hamlet?",
    "Tell me a joke.",
    "What is 2 + 2?",
    "Where is Oslo?",
)
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def base_model() -> PreTrainedModel:
    """The default model as floats."""
    path = resolve("default", default_cache())
    options = {"gguf_file": path.name, "dtype": torch.float32}
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(str(path.parent), **options)
    # Its numbers are floats by now, though it still counts as quantized, and peft would go by that.
    model.is_quantized = False
    model.config.__dict__.pop("quantization_config", None)
    return model


def train(out: Path, rank: int, num_steps: int, word: str, use_dora: bool = False) -> PeftModel:
    path = resolve("default", default_cache())
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    torch.manual_seed(0)
    config = LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=2 * rank, target_modules=MODULES, use_dora=use_dora)
    model = get_peft_model(base_model(), config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(num_steps):
        question = QUESTIONS[step % len(QUESTIONS)]
        asked = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        prompt = tokenizer(asked)["input_ids"]
        answer = tokenizer(f"{word}, {word}, {word}.<|im_end|>")["input_ids"]
        ids = torch.tensor([prompt + answer])
        labels = torch.tensor([[-100] * len(prompt) + answer])
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    model.save_pretrained(str(out), save_embedding_layers=False)  # nor look for a vocabulary to compare with
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--word", default="penstock")
    parser.add_argument("--dora", action="store_true")
    asked = parser.parse_args()
    train(asked.out, asked.rank, asked.steps, asked.word, asked.dora)


if __name__ == "__main__":
    main()

"""Real models behind the server say what they say without it."""

import pytest

from penstock import LLM, SamplingParams
from tests.real import MINILM, RANDOM_LLAMA, model_path
from tests.server.serving import serving, user

PROMPTS = ["Once upon a time", "The quick brown fox", "def main():"]


def test_a_served_model_completes_as_it_does_without_a_server() -> None:
    path = str(model_path(RANDOM_LLAMA))
    params = SamplingParams(temperature=0.0, max_tokens=16)
    expected = [completion.text for completion in LLM(path, max_context=256).generate(PROMPTS, params)]
    with serving("--max-context", "256", model=path, is_real=True) as server:
        client = server.sdk()
        model = client.models.list().data[0].id
        answer = client.completions.create(model=model, prompt=PROMPTS, max_tokens=16, temperature=0.0)
        assert [choice.text for choice in answer.choices] == expected
        stream = client.completions.create(model=model, prompt=PROMPTS[0], max_tokens=16, temperature=0.0, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == expected[0]
        judged = client.completions.create(model=model, prompt=PROMPTS[1], max_tokens=1, echo=True, logprobs=2)
        logprobs = judged.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.token_logprobs is not None
        assert logprobs.token_logprobs[0] is None
        assert all(number < 0 for number in logprobs.token_logprobs[1:] if number is not None)
        assert server.get("/readyz").status_code == 200
        assert server.stop() == 0


def test_a_served_encoder_makes_vectors_and_no_text() -> None:
    path = str(model_path(MINILM))
    texts = ["a cat sleeps", "a kitten naps", "the stock market fell"]
    with serving(model=path, is_real=True) as server:
        client = server.sdk()
        vectors = [one.embedding for one in client.embeddings.create(model="default", input=texts).data]
        assert len(vectors[0]) == 384
        near, far = (sum(a * b for a, b in zip(vectors[0], other, strict=True)) for other in vectors[1:])
        assert near > far + 0.2
        ranked = server.post("/v1/rerank", {"query": texts[0], "documents": texts[1:]}).json()["results"]
        assert ranked[0]["index"] == 0
        assert ranked[0]["relevance_score"] == pytest.approx(near, abs=1e-5)
        refused = server.post("/v1/chat/completions", {"messages": user("hi")})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_model")
        assert server.get("/readyz").status_code == 200
        assert "vectors of 384 numbers" in server.banner

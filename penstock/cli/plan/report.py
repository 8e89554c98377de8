"""A plan on the screen: fits, capacity, latency, rankings, what limits it, what to trust, what it costs, and the command."""

from collections.abc import Mapping
from typing import Any

from penstock.amounts import counted, format_bytes, format_count
from penstock.console.show import print_table, printable
from penstock.tools.planner.money import HOURS_PER_MONTH

Data = Mapping[str, Any]
MOST_REJECTED = 6


def print_plan(data: Data) -> None:
    _print_head(data)
    chosen = data["chosen"]
    if chosen is None:
        _title("Nothing fits")
        _print_rejected(data)
        return
    _print_fit(chosen, data["demand"])
    _print_capacity(chosen)
    if data["at_load"] is not None:
        _print_latency(data["at_load"], chosen)
    _print_ranking(data)
    _print_what_ifs(data)
    _print_regions(data)
    _print_constraint(data["constraint"])
    _print_trust(data["trust"])
    _print_cost(data)
    _print_launch(data)


def _print_head(data: Data) -> None:
    demand, target, model, took = data["demand"], data["target"], data["model"], data["took"]
    count, active = model["num_parameters"], model["num_active_parameters"]
    times = {"TTFT": target["slo"]["ttft_s"], "TPOT": target["slo"]["tpot_s"], "E2E": target["slo"]["e2e_s"]}
    bounds = ", ".join(f"{name} up to {1e3 * value:,.0f} ms" for name, value in times.items() if value is not None)
    _rows(
        ("model", f"{model['name']}, {format_count(count)} parameters, {format_count(active)} used for a token"),
        (
            "load",
            f"{_who(demand)}{demand['rate']:.4g} requests/s of {demand['mean_prompt']:,.0f} prompt and "
            f"{demand['mean_answer']:,.0f} answer tokens on average, 95 % below {demand['p95_total']:,.0f} in all"
            + (f"; conversations of {demand['num_turns']} turns" if demand["num_turns"] > 1 else ""),
        ),
        ("target", f"{bounds} for {100 * target['fraction']:g} % of requests"),
        (
            "search",
            f"{counted(took['num_fitting'], 'candidate')} fitting, {counted(took['num_simulations'], 'run')} simulated "
            f"in {took['seconds']:.1f} s",
        ),
    )


def _print_fit(chosen: Data, demand: Data) -> None:
    fit = chosen["fit"]
    _title(f"Fits: {chosen['name']}")
    rows = [(f"weights: {part}", size) for part, size in fit["weight_bytes"].items()]
    rows += [
        ("activations, at most", fit["activation_bytes"]),
        ("recorded steps and slack", fit["reserve_bytes"]),
        *([("adapters on the device", fit["adapter_bytes"])] if fit["adapter_bytes"] else []),
        ("KV cache", fit["kv_bytes"]),
        ("margin", fit["margin_bytes"]),
    ]
    rest = fit["memory_bytes"] - sum(size for _, size in rows)
    rows += [("unused", max(rest, 0)), ("memory", fit["memory_bytes"])]
    total = fit["memory_bytes"]
    print_table(("of one device", "", "%"), [(name, format_bytes(size), 100.0 * size / total) for name, size in rows])
    kinds = ", ".join(f"{size:,} B in {kind}" for kind, size in fit["kv_by_attention"].items())
    _rows(
        ("KV of a token", f"{kinds}; {fit['kv_bytes_per_token']:,} B on a device"),
        *([("a state", f"{format_bytes(fit['state_bytes'])}, whatever the context")] if fit["state_bytes"] else []),
        (
            "holds",
            f"{fit['num_tokens']:,} tokens at once: {fit['users_mean']:,} users of mean length, {fit['users_p95']:,} of the "
            f"95th percentile's {demand['p95_total']:,.0f} tokens",
        ),
    )
    if fit["users_in_sight"] > 1.1 * max(fit["users_mean"], 1):
        _rows(("", f"{fit['users_in_sight']:,} of mean length if layers with a window kept no more than that"))


def _print_capacity(chosen: Data) -> None:
    capacity, price = chosen["capacity"], chosen["dollars_per_million"]
    _title("Capacity at the SLO, a replica")
    rows: list[tuple[str, object]] = [
        ("requests/s", capacity["requests_per_s"]),
        ("of which good", capacity["good_requests_per_s"]),
        ("users at once", capacity["users"]),
        ("output tokens/s", capacity["tokens_per_s"]),
        ("output tokens/s a device", capacity["tokens_per_s_per_device"]),
        ("output tokens/s a user", capacity["tokens_per_s_per_user"]),
    ]
    if price is not None:
        rows += [
            ("$ a million prompt tokens", price["prompt"]),
            ("$ a million answer tokens", price["answer"]),
            ("$ a million tokens, all alike", price["blended"]),
        ]
    print_table(("", ""), rows)


def _who(demand: Data) -> str:
    """Where people were asked for and not a rate: the rate at which they ask while each answer takes all the SLO allows."""
    users = demand.get("users")
    return f"{users:,} users who think for {demand['think_s']:g} s: at most " if users else ""


def _print_latency(run: Data, chosen: Data) -> None:
    devices = f"{counted(chosen['num_replicas'], 'replica')}, {counted(chosen['num_devices'], 'device')}"
    _title(f"Latency at {run['rate']:.4g} requests/s on {devices}")
    names = ("p50", "p90", "p99")
    rows = [(name.upper(), *(1e3 * run[name][share] for share in names)) for name in ("ttft", "tpot", "e2e")]
    print_table(("ms", *names), rows)
    _rows(
        ("queue", f"{1e3 * run['mean_queue_s']:,.1f} ms on average"),
        ("good", f"{100 * run['good_fraction']:.1f} % of requests"),
        (
            "rho",
            f"{run['rho'] or 0.0:.2f} of the rate that meets the SLO; KV {run['max_kv_usage_fraction']:.0%} at most",
        ),
        ("inside", f"{run['inside']:,.1f} requests on average: rate x E2E (Little's law)"),
        ("preempted", f"{100 * run['preemptions_per_request']:.1f} times in 100 requests"),
        (
            "cache hits",
            f"{100 * run['cached_prompt_fraction']:.0f} % of prompt tokens, as the load's own prefixes give",
        ),
    )


def _print_ranking(data: Data) -> None:
    _title("Ranked")
    rows = []
    for number, option in enumerate(data["options"], 1):
        limits = _cells(option, "name", "max_sequences", "max_batch_tokens")
        speeds = _cells(option["capacity"], "requests_per_s", "tokens_per_s_per_device", "tokens_per_s_per_user")
        costs = (option["num_devices"] or "never", option["dollars_per_hour"])
        rows.append((number, *limits, *costs, *speeds, option["runs_today"]))
    columns = ("", "a replica", "sequences", "budget", "devices", "$/hour", "req/s each", "tok/s/device", "tok/s/user")
    print_table((*columns, "runs today"), rows)
    for name, quality in {one["weights"]: one["quality"] for one in data["options"] if one.get("quality")}.items():
        kl = "" if quality["kl"] is None else f", KL {quality['kl']:.4f} nats"
        words = f"perplexity {100 * quality['perplexity_change']:+.1f} %{kl} by {quality['method']}, as reported"
        print(printable(f"quality     {name}: {words}"))
    if data["pareto"]:
        print()
        keys = ("name", "rate", "tokens_per_s_per_device", "tokens_per_s_per_user")
        points = [_cells(point, *keys) for point in data["pareto"]]
        print_table(("Pareto front", "req/s a copy", "tok/s/device", "tok/s/user"), points)
    if data["rejected"]:
        print()
        _print_rejected(data)


def _print_rejected(data: Data) -> None:
    latest = {tuple(one["name"].split(", ")[1:]): one for one in data["rejected"]}  # the largest layout of each kind
    shown = list(latest.values())[:MOST_REJECTED]
    for one in shown:
        print(printable(f"left out    {one['name']}: {one['reason']}"))
    if len(data["rejected"]) > len(shown):
        print(f"left out    {len(data['rejected']) - len(shown)} more; --json lists them")


def _print_regions(data: Data) -> None:
    """On paper: each region by itself, with room for what it takes over when another is lost."""
    if not data["regions"]:
        return
    _title("Regions, on paper")
    keys = ("name", "device", "rate", "num_replicas", "num_spare", "num_devices", "hourly")
    rows = [_cells(one, *keys) for one in data["regions"]]
    print_table(("region", "device", "requests/s", "replicas", "spare", "devices", "$/hour"), rows)
    print("spare: replicas that let the others carry everything while any one region is lost")
    hourly = [one["hourly"] for one in data["regions"]]
    if None not in hourly:
        month = f"${sum(hourly) * HOURS_PER_MONTH:,.0f} a month"
        print(f"in all: {month} for devices, in place of those of one fleet below")


def _print_what_ifs(data: Data) -> None:
    if not data["what_ifs"]:
        return
    _title("What if, on the same fleet")
    rows = []
    for one in data["what_ifs"]:
        run = one["run"]
        figures = (None, None, None) if run is None else (
            100.0 * run["good_fraction"], 1e3 * run["ttft"]["p95"], 1e3 * run["tpot"]["p95"]
        )  # fmt: skip
        rows.append((one["what"], "holds" if one["is_met"] else "misses", *figures, one["consequence"]))
    print_table(("", "SLO", "good %", "TTFT p95, ms", "TPOT p95, ms", ""), rows)


def _print_constraint(constraint: Data | None) -> None:
    if constraint is None:
        return
    _title("What limits it")
    words = constraint["words"] + "."
    if constraint["remedy"] and constraint["gain"] is not None:
        gain = constraint["gain"]
        effect = f"gives {100 * gain:+.0f} % requests/s" if abs(gain) >= 0.02 else "changes nothing"
        worse = "does not help: it " if gain <= -0.02 else ""
        words += f" {constraint['remedy']} {worse}{effect}."
    print(printable(words))


def _print_trust(trust: Data) -> None:
    _title("How far to trust it")
    if trust["step_times"] == "measured":
        measured = trust["measured"]
        rows = [("step times", f"measured by {measured.get('from', 'penstock profile')}")]
        rows.append(("error", f"{100 * trust['step_error']:.1f} % (median) on steps that were not fitted"))
        for name, one in (trust["back_test"] or {}).items():
            if isinstance(one, Mapping):
                rows.append(("back-test", f"{_metric(name)}: {100 * one['error']:+.1f} %"))
        if trust["is_extrapolating"]:
            share = 100 * trust["extrapolated_fraction"]
            rows.append(("EXTRAPOLATED", f"{share:.0f} % of steps lie beyond what was measured"))
    else:
        ceilings = ", ".join(f"{name} {how}" for name, how in trust["ceilings"].items())
        way = "measure with penstock profile there, or penstock plan verify"
        rows = [
            ("step times", f"roofline, from the devices' figures ({ceilings}); no step was measured"),
            ("EXTRAPOLATED", f"no back-test on such a device; {way}"),
        ]
    rows += [("all-reduce", f"{name}: {words}") for name, words in trust["exchanges"].items()]
    rows += [
        ("memory", trust["memory"]),
        ("scheduling", trust["scheduling"]),
        ("load", trust["load"]),
        *(("price", f"{name}: {source}") for name, source in trust["prices"].items()),
        ("resolution", f"capacities are distinguished to {100 * trust['capacity_resolution']:.1f} %"),
    ]
    _rows(*rows)


def _print_cost(data: Data) -> None:
    cost = data["self_host"]
    if cost is None:
        return
    assumed = cost["assumed"]
    _title("A month")
    rows = [
        (
            "devices",
            f"${cost['gpu_dollars']:,.0f} for {counted(cost['num_replicas'], 'replica')}, each used at no more than "
            f"{100 * assumed['utilization']:g} % of capacity, for {HOURS_PER_MONTH:g} hours",
        ),
        (
            "people",
            f"${cost['engineer_dollars']:,.0f} for {assumed['engineer_hours']:g} hours at ${assumed['engineer_price']:g}",
        ),
        ("in all", f"${cost['dollars']:,.0f} for {cost['requests'] / 1e6:,.1f} million requests"),
    ]
    if cost["api_dollars"] is None:
        rows.append(("an API", "give api-in and api-out, dollars a million tokens, to compare"))
    else:
        prices = f"${assumed['api_in']:g} in, ${assumed['api_out']:g} out"
        if assumed["api_cached"] is not None:
            prices += f", ${assumed['api_cached']:g} where sent before"
        if assumed["api_batch"] != 1.0:
            prices += f", {100 * assumed['api_batch']:g} % of that"
        rows.append(("an API", f"${cost['api_dollars']:,.0f} at {prices}"))
        even = cost["break_even_requests"]
        never = "never: a full replica costs more than the API"
        rows.append(("break-even", never if even is None else f"{even / 1e6:,.2f} million requests"))
    _rows(*rows)


def _print_launch(data: Data) -> None:
    chosen, options = data["chosen"], data["options"]
    _title("Launch")
    if not chosen["num_replicas"]:
        print("No number of these meets the target; loosen --slo, or name other --hardware. What came nearest:")
    for line in chosen["launch"]:
        print(printable(line))
    others = [(number, one) for number, one in enumerate(options, 1) if one["name"] != chosen["name"]]
    if others:
        print("\nThe others of the ranking, a replica of each:")
        for number, one in others:
            words = "; ".join(one["launch"]) if one["gaps"] else one["launch"][0]
            print(printable(f"{number}  {words}"))
        print()
    best = options[0]
    if best["name"] != chosen["name"] and best["gaps"] and best["num_replicas"]:
        print(printable(f"Better, but {'; '.join(best['gaps'])}: {best['name']}"))
    path = data["asked"]["emit"]
    if path is not None:
        print(printable(f"Written: {path}. Prove it: penstock plan verify http://127.0.0.1:8000 --plan {path}"))


def _metric(name: str) -> str:
    """`ttft_p50_s` as one says it."""
    what, _, share = name.removesuffix("_s").partition("_p")
    return f"{what.upper()} p{share}" if share.isdigit() else name.replace("_per_s", "/s").replace("_", " ")


def _cells(row: Data, *keys: str) -> tuple[object, ...]:
    return tuple(row[key] for key in keys)


def _title(text: str) -> None:
    print(f"\n{printable(text)}\n{'-' * len(text)}")


def _rows(*rows: tuple[str, str]) -> None:
    for name, text in rows:
        print(printable(f"{name:14}{text}"))

"""Tables of robots and their simulators."""

from statistics import median

from docs.generator.benchmark_tables.results import machine, read
from docs.generator.markdown import code, table
from embodyflow.data.confidence_intervals import wilson_interval


def slow_environments() -> str:
    """Return the speed and the success of streamed episodes where each step of an environment is slow."""
    report = read("slow_environments")
    rows = []
    for job in report["comparisons"]:
        for each in job["arms"]:
            speed = median(each["samples_per_second"])
            rates = {key: median(values) for key, values in each["success"].items()}
            lifts = (
                f"{rates[f'{kind}success_rate_before']:.2f} → {rates[f'{kind}success_rate_after']:.2f}"
                for kind in ("", "sampled_")
            )
            rows.append((code(job["job"]), each["arm"], f"{speed:.2f}", f"{each['ratio']:.2f}", *lifts))
    header = ("Experiment", "Arm", "Samples/s", "By the synchronous run", "Greedy success", "Sampled success")
    return f"{table(header, rows)}\n\nOn {machine(report)}."


def full_size() -> str:
    """Return memory by role and seconds by node of SmolVLA at its published size."""
    return _memory_and_seconds("smolvla-expert-16")


def full_size_pi05() -> str:
    """Return the same of π0.5 with its published widths and some of its layers."""
    return _memory_and_seconds("pi05-expert-5")


def _memory_and_seconds(name: str) -> str:
    report = read("full_size")
    each = next(each for each in report["comparisons"] if each["name"] == name)
    memory, last = each["memory"], each["iterations"][-1]
    roles = {
        **memory["by_role"],
        "workers": memory["workers"],
        "all processes": memory["processes"],
        "`/dev/shm`": memory["dev_shm"],
    }
    nodes = ("rollout", "old_log_prob", "ref_log_prob", "train_actor", "commit", "iteration")
    planned = {**each["planned"], "`/dev/shm`": each["planned"]["dev_shm"]}
    forecasts = {role: f"{planned[role]:.2f}" if role in planned else "–" for role in roles}
    rows = [(role, f"{gib:.2f}", forecasts[role]) for role, gib in roles.items()]
    held = table(("Role", "Peak, GiB", "Planned"), rows)
    seconds = [(code(node), f"{last[f'perf/{node}_seconds']:.1f} s") for node in nodes]
    return f"{held}\n\n{table(('Node', 'Second iteration'), seconds)}\n\nOn {machine(report)}."


def members() -> str:
    """Return success on unseen goals of each member of a mixed run, with Wilson's intervals of 95 %."""
    rows = []
    for run in read("members")["runs"]:
        for task in run["before"]["greedy"]:
            cells = [
                _with_interval(run[moment][mode][task], run["num_goals"])
                for mode in ("greedy", "sampled")
                for moment in ("before", "after")
            ]
            rows.append((str(run["seed"]), code(task), *cells))
    head = ("Seed", "Member and task", "Greedy, before", "After", "Sampled, before", "After")
    return table(head, rows)


def _with_interval(rate: float, trials: int) -> str:
    low, high = wilson_interval(rate * trials, trials)
    return f"{rate:.2f} ({low:.2f} to {high:.2f})"


def act_dataset() -> str:
    """Return success on unseen goals of ACT by the source of its demonstrations, and before and after GRPO."""
    rows = []
    for each in read("act_dataset")["comparisons"]:
        cloned = [f"{each[name]:.2f}" for name in ("from_episodes", "from_dataset")]
        trained = [
            f"{each['grpo'][f'{kind}success_rate_before']:.2f} → {each['grpo'][f'{kind}success_rate_after']:.2f}"
            for kind in ("", "sampled_")
        ]
        rows.append((str(each["seed"]), *cloned, *trained, f"{each['grpo']['num_episodes']:,}"))
    head = ("Seed", "From the episodes", "From the data set", "GRPO, greedy", "GRPO, sampled", "Its episodes")
    return table(head, rows)


def temporal_ensemble() -> str:
    """Return success, steps and jumps of cloned policies by chunks and by coefficients of temporal ensembling."""
    rows = []
    for each in read("temporal_ensemble")["comparisons"]:
        for played in each["greedy"]:
            name = "chunks" if played["coefficient"] is None else f"ensemble, {played['coefficient']:g}"
            success = _with_interval(played["success"], each["num_goals"])
            rows.append((str(each["seed"]), name, success, f"{played['steps']:.0f}", f"{played['jump']:.3f}"))
    return table(("Seed", "Executed", "Greedy success", "Steps of an episode", "Jump of an action"), rows)


def dagger() -> str:
    """Return success on unseen goals of DAgger and of cloning with equal optimizer steps."""
    rows = []
    for each in read("dagger")["comparisons"]:
        cloned = [f"{other['success']:.2f}" for other in each["cloning"]]
        ours = each["dagger"]
        rows.append((str(each["seed"]), *cloned, f"**{ours['success']:.2f}**", f"{ours['labels']:,}"))
    head = ("Seed", *(f"Cloning {number}" for number in (4, 8, 16, 40)), "DAgger from 4", "Its labels")
    return table(head, rows)


def dagger_recipes() -> str:
    """Return success on unseen goals of experiments that learn by DAgger, after cloning and after training."""
    rows = [
        (
            code(each["experiment"]),
            str(each["seed"]),
            str(each["demonstrations"]),
            f"{each['cloned']:.2f}",
            f"**{each['success']:.2f}**",
            str(each["episodes"]),
            f"{each['labels']:,}",
            f"{each['cpu_seconds'] / 60:.1f} min",
        )
        for each in read("dagger_recipes")["comparisons"]
    ]
    head = ("`experiment=`", "Seed", "Demonstrations", "Cloned", "Trained", "Episodes", "Labels", "CPU time")
    return table(head, rows)


def dsrl() -> str:
    """Return success on unseen goals of a frozen policy, and of the one that steers it."""
    rows = [
        (
            str(run["seed"]),
            *(f"{value:.2f}" for value in (run["frozen_success"], run["points"][0]["success"])),
            f"**{run['points'][-1]['success']:.2f}**",
            f"{run['episodes']:,}",
            f"{run['steps']:,}",
        )
        for run in read("dsrl_push")["runs"]
    ]
    head = ("Seed", "Frozen, from standard normals", "Frozen, from zeros", "Steered", "Episodes", "Steps")
    return table(head, rows)


def rlpd() -> str:
    """Return success on unseen goals of RLPD from a few demonstrations, beside GRPO's means from as many."""
    rows = []
    for experiment in ("push", "drawer_open"):
        report = read(f"rlpd_{experiment}")
        peer = f"{report['grpo']['success_after']:.2f}", f"{report['grpo']['episodes']:,.0f}"
        for run in report["runs"]:
            cloned, trained = (f"{run['points'][place]['success']:.2f}" for place in (0, -1))
            counts = (f"{run[name]:,}" for name in ("episodes", "steps"))
            minutes = f"{run['cpu_seconds'] / 60:.1f} min"
            rows.append((code(experiment), str(run["seed"]), cloned, f"**{trained}**", *counts, minutes, *peer))
    head = ("Experiment", "Seed", "Cloned", "Trained", "Episodes", "Steps", "CPU time", "GRPO", "Its episodes")
    return table(head, rows)


def drq() -> str:
    """Return success on unseen goals of DrQ from images, and of the same with black images."""
    report, rows = read("drq_drawer_open"), []
    for run in report["runs"]:
        cloned, trained = (f"{run['points'][place]['success']:.2f}" for place in (0, -1))
        seen = "black" if run.get("blind") else "64 pixels"
        counts = (f"{run[name]:,}" for name in ("episodes", "steps"))
        minutes = f"{run['cpu_seconds'] / 60:.1f} min"
        rows.append((code("drawer_open"), seen, str(run["seed"]), cloned, f"**{trained}**", *counts, minutes))
    return table(("Experiment", "Images", "Seed", "Cloned", "Trained", "Episodes", "Steps", "CPU time"), rows)


def vector_env() -> str:
    """Return steps per second of vector environments."""
    report = read("vector_env")
    rows = []
    for each in report["comparisons"]:
        ours, peer = (each["contenders"][each[who]]["steps_per_second"] for who in ("ours", "best_peer"))
        peers = f"{peer:,.0f} ({each['best_peer']})"
        case = f"{each['environment']}, chunks of {each['chunk_size']}"
        rows.append((case, f"{ours:,.0f}", peers, f"{each['wall_ratio']:.2f}", machine(report)))
    return table(("Environment", "Ours", "Best peer", "Ratio", "Machine"), rows)


def batched_env() -> str:
    """Return steps per second of EnvPool alone, in our vector environment and with a policy in the loop."""
    return _batched_env("batched_env", "EnvPool")


def batched_env_brax() -> str:
    """Return the same of Brax."""
    return _batched_env("batched_env_brax", "Brax")


def _batched_env(name: str, simulator: str) -> str:
    report = read(name)
    [found] = report["comparisons"]
    rates = {name: median(each) for name, each in found["steps_per_second"].items()}
    alone, vector, worker, single = rates.values()
    rows = [
        (f"{simulator} alone", f"{alone:,.0f}", "", machine(report)),
        ("our vector environment on it", f"{vector:,.0f}", f"{found['share_of_vector_environment']:.2f}", ""),
        ("our rollout worker on it", f"{worker:,.0f}", f"**{found['share_with_policy']:.2f}**", ""),
        ("our rollout worker on single environments", f"{single:,.0f}", "", ""),
    ]
    return table(("HalfCheetah", "Steps/s", f"Share of {simulator}'s", "Machine"), rows)


def libero() -> str:
    """Return steps per second of LIBERO's environments."""
    rows = []
    for each in read("libero_images")["comparisons"]:
        ours, peer = (each["rates"][who]["steps_per_wall_second"] for who in ("embodyflow", "LIBERO SubprocVectorEnv"))
        case, ratio = f"images, chunks of {each['chunk_size']}", each["steps_per_wall_second_ratio"]
        rows.append((case, f"{ours:.0f}", f"{peer:.0f} (LIBERO's SubprocVectorEnv)", f"{ratio:.1f}"))
    for task, rates in read("libero_steps")["steps_per_cpu_second"].items():
        ours, peer = rates["ours"], rates["robosuite"]
        rows.append((f"states of {task}", f"{ours:.0f}", f"{peer:.0f} (robosuite)", f"{ours / peer:.1f}"))
    return table(("What is shown", "Ours", "Peer", "Ratio"), rows)


TABLES = (
    slow_environments,
    full_size,
    full_size_pi05,
    members,
    act_dataset,
    temporal_ensemble,
    dagger,
    dagger_recipes,
    rlpd,
    drq,
    dsrl,
    vector_env,
    batched_env,
    batched_env_brax,
    libero,
)

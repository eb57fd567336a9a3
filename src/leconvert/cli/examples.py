"""Examples that end the help of each command: what is wanted, and the line that does it."""

from __future__ import annotations

__all__ = ["EXAMPLES", "examples_text"]

# By the program's words, such as ``leconvert probe run``. A line ends before column 80.
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "leconvert": (
        ("see it work on a dataset that it makes itself", "leconvert demo"),
        ("convert a dataset of this machine", "leconvert convert --root my_dataset"),
    ),
    "leconvert convert": (
        ("in place; the source is kept as my_dataset_old", "leconvert convert --root my_dataset"),
        ("beside the source", "leconvert convert --root my_dataset --output my_dataset_v30"),
        (
            "from the Hub and back to it, in one commit with the tag v3.0",
            "leconvert convert --repo-id ORG/NAME",
        ),
        (
            "by 8 processes; more can join from other hosts",
            "leconvert convert --root my_dataset --num-workers 8",
        ),
        (
            "by 40 workers that SLURM starts",
            "leconvert convert --root my_dataset --engine slurm --nodes 10",
        ),
        ("show what would be done", "leconvert convert --root my_dataset --dry-run"),
    ),
    "leconvert plan": (
        (
            "plan for workers on several hosts; every path on a file system they share",
            "leconvert plan --root my_dataset --output out --work-dir my_run",
        ),
        ("show the plan, and write nothing", "leconvert plan --root my_dataset --dry-run"),
    ),
    "leconvert work": (
        ("until nothing is left; on as many hosts as you like", "leconvert work my_run"),
        ("end after an hour without work", "leconvert work my_run --max-idle-seconds 3600"),
    ),
    "leconvert submit": (
        (
            "40 workers of one core each, and a packer after them",
            "leconvert submit my_run --nodes 10 --partition cpu --time 02:00:00",
        ),
        ("see the script first", "leconvert submit my_run --nodes 10 --dry-run"),
    ),
    "leconvert pack": (
        ("wait for the workers, then put the result in place", "leconvert pack my_run"),
        ("say what is missing, and do not wait", "leconvert pack my_run --no-wait"),
    ),
    "leconvert status": (
        ("one look", "leconvert status my_run"),
        ("look again every 10 seconds", "leconvert status my_run --watch 10"),
    ),
    "leconvert release": (
        ("what was set aside, once its cause is mended", "leconvert release my_run --failed"),
        ("take batch 7 from a worker that is gone", "leconvert release my_run 7"),
    ),
    "leconvert clean": (
        ("say what would be removed", "leconvert clean my_run --dry-run"),
        (
            "remove the source that a conversion kept, after a proof that nothing is lost",
            "leconvert clean --of my_dataset --old",
        ),
    ),
    "leconvert check": (
        ("a v2.1 dataset before its conversion, or a v3.0 one", "leconvert check my_dataset"),
        ("for a script: fail at warnings too, and say it as JSON",
         "leconvert check my_dataset --strict --json"),
    ),
    "leconvert check-fs": (
        ("what this host can see by itself", "leconvert check-fs /shared/runs"),
        ("with a second host: there first", "leconvert check-fs /shared/runs --peer"),
    ),
    "leconvert doctor": (
        ("this machine", "leconvert doctor"),
        ("this machine, and the file system of a folder", "leconvert doctor /shared/runs"),
        ("for a bug report", "leconvert doctor --json"),
    ),
    "leconvert completion": (
        (
            "bash: and `source ~/.leconvert.bash` in ~/.bashrc",
            "leconvert completion bash > ~/.leconvert.bash",
        ),
        ("zsh: into a folder of $fpath", "leconvert completion zsh > ~/.zfunc/_leconvert"),
        (
            "fish",
            "leconvert completion fish > ~/.config/fish/completions/leconvert.fish",
        ),
    ),
    "leconvert report": (
        ("a run, finished or not", "leconvert report my_run -o report.html"),
        ("a dataset, of which less is known", "leconvert report my_dataset"),
    ),
    "leconvert verify": (
        (
            "headers, tables, times, sizes and totals",
            "leconvert verify my_dataset --source my_dataset_old",
        ),
        (
            "every coded packet and every row, and 100 decoded pictures",
            "leconvert verify my_dataset --source my_dataset_old --bytes --decode 100",
        ),
    ),
    "leconvert push": (
        (
            "see what it would do",
            "leconvert push my_dataset --push-repo-id ORG/NAME --dry-run",
        ),
        (
            "into a pull request",
            "leconvert push my_dataset --push-repo-id ORG/NAME --create-pr",
        ),
    ),
    "leconvert mirror": (
        ("to a bucket", "leconvert mirror my_dataset s3://BUCKET/NAME"),
        ("to a folder, such as a mounted disk", "leconvert mirror my_dataset file:///mnt/NAME"),
    ),
    "leconvert demo": (
        ("in ./leconvert-demo", "leconvert demo"),
        ("in a folder of your own, told as JSON", "leconvert demo my_demo --json"),
    ),
    "leconvert probe": (
        ("how fast does it load?", "leconvert probe run --root my_dataset --duration-s 10"),
        ("what is installed, and what is missing?", "leconvert probe diagnose"),
    ),
    "leconvert probe run": (
        ("stream for 10 seconds", "leconvert probe run --root my_dataset --duration-s 10"),
        (
            "compare 100 samples with LeRobot's own loader, frame by frame",
            "leconvert probe run --root my_dataset --check 100",
        ),
    ),
    "leconvert probe limit": (
        ("as fast as the cores decode", "leconvert probe limit --root my_dataset"),
    ),
    "leconvert probe diagnose": (
        ("this machine", "leconvert probe diagnose"),
        (
            "one frame of a dataset, on a GPU",
            "leconvert probe diagnose --root my_dataset --decode-device cuda",
        ),
    ),
    "leconvert probe summarize": (
        ("all results of a folder", "leconvert probe summarize probe-results"),
    ),
    "leconvert probe resample": (
        (
            "synthetic trajectories, to 50 Hz",
            "leconvert probe resample --hz 50",
        ),
        (
            "a column of a dataset",
            "leconvert probe resample --dataset my_dataset --columns action",
        ),
    ),
    "leconvert probe submit": (
        (
            "see the script first",
            "leconvert probe submit --root my_dataset --scenarios mmap_local --dry-run",
        ),
    ),
    "leconvert probe train": (
        (
            "100 steps, a checkpoint every 20",
            "leconvert probe train --root my_dataset --steps 100 --save-every 20",
        ),
        (
            "go on from the newest checkpoint",
            "leconvert probe train --root my_dataset --steps 200 --resume-from last",
        ),
    ),
}  # fmt: skip


def examples_text(prog: str) -> str:
    """Return the end of a command's help.

    Args:
        prog: The program's words, such as ``leconvert probe run``.
    """
    lines = [f"  # {what}\n  {line}" for what, line in EXAMPLES[prog]]
    return "\n".join(["examples:", *lines]) + "\n"

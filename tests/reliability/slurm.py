#!/usr/bin/env python3
"""Requeues a Slurm job by hand, preempts it, and sends it the signal that precedes a time limit.
Each time, the job must resume from the step at which it stopped. At the end of the job, the run
must be bitwise equal to an uninterrupted run. The job's script is docs/requeue.sbatch. Then a job
of two tasks, which train together, is requeued. The run of this job must be bitwise equal to a run
on one process.

The cluster is one node on the loopback address. Its files, and a separate munge, are in a temporary
folder. The test needs Debian's packages slurm-wlm and munge. Another job, which Slurm may not
requeue, is stopped once. The check must notice that the run of this job is incomplete.

usage: slurm.py LATHE
"""
import contextlib
import getpass
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

from tiny import Tiny, check, control, difference, need

STEPS = 16000
STEPS_OF_RANKS = 3000
JOB = Path(__file__).resolve().parents[2] / "docs/requeue.sbatch"
CONF = """ClusterName=lathe
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/linear
ReturnToService=2
KillWait=60
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=low Nodes={host} Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=high Nodes={host} MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""


def free_ports(n):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


def wait_for(what, condition, seconds=180):
    end = time.monotonic() + seconds
    while not (value := condition()):
        check(time.monotonic() < end, f"{what}: not within {seconds} s")
        time.sleep(0.05)
    return value


class Cluster:
    def __init__(self, folder):
        self.folder, self.daemons = folder, []
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def start(self):
        folder = self.folder
        for name in ("munge", "state", "spool"):
            (folder / name).mkdir(parents=True)
        for open_to_all in (folder.parent, folder):
            open_to_all.chmod(0o711)  # munge requires that other users can reach its socket
        key = folder / "munge/key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        conf = folder / "slurm.conf"
        conf.write_text(CONF.format(host=socket.gethostname().split(".")[0], user=getpass.getuser(), folder=folder,
                                    ports=free_ports(2), cpus=min(2, os.cpu_count())))
        self.daemon("munged", "--foreground", f"--key-file={key}", *[f"--{what}-file={folder}/munge/{what}"
                                                                    for what in ("log", "pid", "seed")],
                    f"--socket={folder}/munge/socket", "--num-threads=1")
        wait_for("munge", (folder / "munge/socket").exists, 30)
        self.daemon("slurmctld", "-D", "-f", conf)
        self.daemon("slurmd", "-D", "-f", conf)
        wait_for("the node", lambda: "idle" in self.run("sinfo", "-h", "-o", "%t", code=None))

    def daemon(self, *words):
        log = open(self.folder / f"{words[0]}.out", "w")
        self.daemons.append(subprocess.Popen([str(w) for w in words], stdout=log, stderr=log, env=self.environment,
                                             cwd=self.folder))

    def run(self, *words, code=0):
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True, env=self.environment,
                              cwd=self.folder)
        check(code is None or done.returncode == code, f"{words}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def field(self, job, name):
        return re.search(rf"\b{name}=(\S+)", self.run("scontrol", "show", "job", job))[1]

    def end(self):
        for daemon in reversed(self.daemons):
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
            daemon.kill()
            daemon.wait()


def main():
    need("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
    tiny = Tiny(sys.argv[1], steps=STEPS, interval=5000, words=["--train.eval_interval=4500"])
    cluster = Cluster(tiny.folder / "cluster")
    try:
        cluster.start()

        def submit(run, *options, of=tiny):
            out = tiny.folder / f"{run.name}.out"
            job = cluster.run("sbatch", "--parsable", *options, f"--output={out}",
                              f"--export=ALL,LATHE={of.lathe}", JOB, *of.command(run)[2:])
            return job, lambda: out.read_text() if out.exists() else ""

        def reached(said, step):
            return any(int(n) >= step for n in re.findall(r"^step (\d+)/", said(), re.M))

        run = tiny.folder / "run"
        job, said = submit(run)
        interruptions = {
            "scontrol requeue": lambda: cluster.run("scontrol", "requeue", job),
            "preemption": lambda: cluster.run("sbatch", "--partition=high", "--output=/dev/null", "--wrap=sleep 1"),
            "USR1": lambda: cluster.run("scancel", "--signal=USR1", job),
        }
        steps = []
        for i, (name, interrupt) in enumerate(interruptions.items()):
            wait_for(f"step {i}", lambda: reached(said, 1500 * i + 500))
            interrupt()
            wait_for(f"{name}: a resume", lambda: said().count(", resuming from ") == i + 1)
            at = int(re.findall(r"^stopped by a signal after step (\d+);", said(), re.M)[i])
            went = int(re.findall(r", resuming from \S*step-(\d+)$", said(), re.M)[i])
            check(at == went < STEPS, f"{name}: stopped after step {at} and resumed from {went}")
            steps.append(f"{name} after step {at}")
        wait_for("the end", lambda: cluster.field(job, "JobState") == "COMPLETED")
        check(cluster.field(job, "Restarts") == "3" and cluster.field(job, "ExitCode") == "0:0", said()[-500:])
        check(difference(tiny.reference, run) == "", difference(tiny.reference, run))

        other = tiny.folder / "other"
        job, said = submit(other, "--no-requeue")
        wait_for("step 500", lambda: reached(said, 500))
        cluster.run("scancel", "--signal=USR1", job)
        wait_for("the control's end", lambda: cluster.field(job, "JobState") == "FAILED")
        check(cluster.field(job, "ExitCode") == "75:0", cluster.field(job, "ExitCode"))
        control("a job that may not be requeued", lambda: check(difference(tiny.reference, other) == "",
                                                                difference(tiny.reference, other)))

        ranks = Tiny(sys.argv[1], steps=STEPS_OF_RANKS, interval=1000, words=["--train.grad_accum=2", "--train.eval_interval=900"])
        shared = tiny.folder / "shared"
        job, said = submit(shared, "--ntasks=2", "--overcommit", of=ranks)
        wait_for("step 500 of two tasks", lambda: reached(said, 500))
        cluster.run("scontrol", "requeue", job)
        wait_for("two tasks: the end", lambda: cluster.field(job, "JobState") == "COMPLETED")
        check("processes 2, each with 1 of the 2 micro-batches" in said(), said()[-2000:])
        check(cluster.field(job, "Restarts") == "1" and said().count(", resuming from ") == 1, said()[-2000:])
        check(difference(ranks.reference, shared) == "", difference(ranks.reference, shared))
        steps.append("two tasks requeued")
    except SystemExit:
        for log in sorted([*cluster.folder.glob("*.log"), *cluster.folder.glob("*.out")]):
            print(log.name, log.read_text()[-2000:])
        raise
    finally:
        cluster.end()
    print(f"{', '.join(steps)}: the job resumed from there each time, and ended with the same bits")


main()

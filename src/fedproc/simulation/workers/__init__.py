"""Many runs over several processes: who trains what where, and what happens when one of them dies.

run.py          the one entrance: runs in this process, or over workers
choice.py       how many workers there are, and why
grouping.py     which runs are trained together in one worker
supervisor.py   hands groups to workers, watches them, hands on what a dead one leaves
process.py      a worker as a process of this machine
worker.py       what runs in that process
distant.py      a worker as a job of a cluster
node.py         what runs in that job
cluster.py      a cluster as a command names it, and what is asked of the folder that its nodes share
clusters.py     the kinds there are: ray_cluster.py, slurm_cluster.py
messages.py     what the two say to each other
images.py       images that are in memory once, for all workers
mps.py          a private MPS daemon, which lets processes share a GPU
"""

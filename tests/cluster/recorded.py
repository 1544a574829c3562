"""Environments as launchers and schedulers make them, for processes of two and four tasks."""

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
}
MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
MVAPICH = {"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_LOCAL_SIZE": "1"}
ALLOCATION = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}


def slurm_step(nodes, tasks_per_node, num_tasks, rank, local=0, **more):
    """A task of a Slurm job step, as ``srun`` starts it."""
    names = {
        "SLURM_JOB_ID": "81234",
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": tasks_per_node,
        "SLURM_STEP_NUM_TASKS": str(num_tasks),
        "SLURM_NTASKS": str(num_tasks),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(local),
    }
    return names | more


def sagemaker_job(hosts, current):
    """A host of a SageMaker training job."""
    return {"SM_HOSTS": hosts, "SM_CURRENT_HOST": current}

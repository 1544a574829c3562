"""Public classes show what is for users, and nothing else.

The table lists every name without underscore. A new one fails the test until somebody decides: it
is for users and goes into the table with its documentation, or it gets an underscore.
"""

from tests.architecture.public_api import bases, own_names, public_classes

# What a class shows that its public bases do not.
ATTRIBUTES = {
    "AUC": "false_positives true_positives",
    "AutoShardPolicy": "AUTO DATA FILE HINT OFF",
    "Average": "count total",
    "BackupAndRestore": "manager step steps",
    "Block": "bounds holders",
    "Checkpoint": "read restore save save_async save_counter sync write",
    "CheckpointManager": """
        checkpoint checkpoint_interval checkpoints directory latest_checkpoint restore_or_initialize
        save sync
    """,
    "CheckpointOptions": "enable_async experimental_enable_async_checkpoint is_async",
    "CheckpointReader": """
        get_tensor get_variable_to_dtype_map get_variable_to_shape_map has_tensor
    """,
    "ClusterCoordinator": """
        close create_per_worker_dataset create_per_worker_resource done fetch join schedule stats
        strategy
    """,
    "ClusterResolver": """
        cluster_spec environment master num_accelerators rpc_layer task_id task_type
    """,
    "ClusterSpec": "as_dict job_tasks jobs num_tasks task_address task_indices",
    "ClusterTopology": """
        describe devices_per_host hosts logical_devices machine num_devices num_replicas stage
        workers_per_host
    """,
    "CommunicationImplementation": "AUTO NCCL RING",
    "CommunicationOptions": "bytes_per_pack deterministic implementation timeout_seconds",
    "CoordinatorStats": """
        applied by_worker per_second queued replayed retried running scheduled staleness
    """,
    "CrossDeviceOps": """
        batch_reduce batch_reduce_implementation broadcast broadcast_implementation reduce
        reduce_implementation
    """,
    "Curve": "at rates sizes",
    "Dataset": """
        apply as_numpy_iterator batch cache cardinality concatenate element_spec enumerate filter
        flat_map from_generator from_tensor_slices from_tensors interleave map options padded_batch
        prefetch range reduce repeat shard shuffle skip take unbatch with_options zip
    """,
    "DatasetIterator": "close",
    "DeviceAssignment": """
        build coordinates core_assignment host_device lookup_replicas num_cores_per_replica
        num_replicas topology tpu_device tpu_ordinal
    """,
    "DeviceOrderMode": "AUTO MESH RING",
    "DistributedDataset": "cardinality element_spec num_replicas reduce",
    "DistributedIterator": """
        close element_spec get_next get_next_as_optional get_state initialize next set_state
    """,
    "DistributedVariable": "values",
    "Drawing": "blocks save shape svg title",
    "EquivalenceReport": "largest_difference num_steps num_values replicas",
    "Estimator": """
        config evaluate get_variable_names get_variable_value latest_checkpoint model_dir params
        predict train
    """,
    "EstimatorSpec": "eval_metric_ops loss mode predictions train_op",
    "EvalSpec": "hooks input_fn name steps throttle_secs",
    "Explanation": "hints program show to_json",
    "Function": "explain input_signature lower lower_run python_function trace_count",
    "Generator": "next_key next_replica_key state",
    "HardwareFeature": "EmbeddingFeature embedding_feature num_embedding_devices_per_chip",
    "HitRatio": "true_positives",
    "InputContext": """
        get_per_replica_batch_size input_pipeline_id num_input_pipelines num_replicas_in_sync
    """,
    "InputOptions": """
        experimental_fetch_to_device experimental_per_replica_buffer_size
        experimental_place_dataset_on_device experimental_replication_mode
    """,
    "InputReplicationMode": "PER_REPLICA PER_WORKER",
    "KubernetesApi": "account_dir in_cluster list_pods namespace url",
    "KubernetesExecutableLocation": "OFF_CLUSTER WITHIN_CLUSTER",
    "LayoutSearch": "layouts machine name notes show to_json too_large",
    "Link": "axes bandwidth latency",
    "LoadedModel": "functions path signatures trainable_variables variables",
    "LogicalDevice": "device_type name",
    "LogicalDeviceConfiguration": """
        experimental_device_ordinal experimental_priority memory_limit
    """,
    "Machine": """
        between between_workers collective_seconds compute_efficiency devices_per_host
        fresh_bandwidth from_json host_link launch_seconds launch_seconds_per_device linked_hosts
        load memory_bandwidth memory_bytes memory_efficiency name overlap peak_flops save
        shared_compute source strided_bandwidth to_json vector_flops within
    """,
    "Metric": """
        add_state dtype name reset_state reset_states result state_dtype update_state variables
    """,
    "Mirrored": "dtype mesh numpy read_value shape values",
    "MirroredReport": "names num_copies",
    "ModeKeys": "EVAL PREDICT TRAIN",
    "MultiStepContext": """
        last_step_outputs non_tensor_outputs run_op set_last_step_output set_non_tensor_output
    """,
    "NanFinding": "index name num_nan num_replicas replica_ids size",
    "Optimizer": """
        apply_gradients build iterations learning_rate minimize name slots_of state variables
    """,
    "Optional": "get_value has_value",
    "Options": "merge",
    "ParameterServerExtended": "close cluster coordinator",
    "PerReplica": "dtype mesh numpy shapes values",
    "PerReplicaSpec": "components",
    "PerWorkerDataset": "element_spec",
    "PhysicalDevice": "device_type name",
    "PlatformApiError": "status",
    "Pod": "hostname index ip name phase",
    "Precision": "false_positives",
    "PreemptionCheckpointHandler": """
        close is_preempted run save_checkpoint_if_preempted total_run_calls watch_preemption_scope
    """,
    "PreemptionWatcher": "block_until_worker_exit close preemption_message",
    "RayClusterResolver": "set_tf_config",
    "Recall": "false_negatives",
    "ReduceOp": "MEAN SUM parse",
    "RemoteValue": "fetch get",
    "ReplicaContext": """
        all_gather all_reduce devices merge_call num_replicas_in_sync replica_id_in_sync_group
        strategy
    """,
    "ReplicaMesh": """
        described devices is_default local_devices local_index local_logical_devices local_replicas
        logical_axes logical_devices mesh num_logical_devices num_replicas per_replica replicated
        spans_workers
    """,
    "RestoreStatus": """
        assert_consumed assert_existing_objects_matched assert_nontrivial_match expect_partial
    """,
    "RunConfig": """
        eval_distribute keep_checkpoint_max log_step_count_steps model_dir replace
        save_checkpoints_secs save_checkpoints_steps tf_random_seed train_distribute
    """,
    "RunOptions": """
        experimental_bucketizing_dynamic_shape experimental_enable_dynamic_batch_size
        experimental_xla_options
    """,
    "ServerVariable": "add_rows assign_rows gather shard_shapes",
    "SessionRunContext": "request_stop stop_requested",
    "SessionRunHook": "after_run before_run begin end",
    "SessionRunValues": "results",
    "Sharding": "partitioner stage",
    "Simulation": "batch chosen first_limit machine name notes predictions show svg to_json",
    "SlurmClusterResolver": "get_task_info",
    "StepPrediction": """
        batch capacity describe efficiency examples_per_second fits global_batch is_estimated
        largest_batch largest_model limit memory slowed_by time topology
    """,
    "Strategy": """
        cluster_resolver colocate_vars_with describe distribute_batch distribute_dataset
        distribute_datasets_from_function experimental_assign_to_logical_device
        experimental_distribute_dataset experimental_distribute_datasets_from_function
        experimental_distribute_values_from_function experimental_local_results
        experimental_make_numpy_dataset experimental_replicate_to_logical_devices experimental_run
        experimental_run_v2 experimental_split_to_logical_devices extended gather group is_chief
        make_dataset_iterator make_input_fn_iterator num_replicas_in_sync predict reduce run scope
        unwrap
    """,
    "StrategyExtended": """
        apply_gradients assign_together batch_reduce_to broadcast_to call_for_each_replica
        cluster_resolver colocate_vars_with create_variable creation_scope distribute_batch
        experimental_between_graph experimental_make_numpy_dataset
        experimental_require_static_shapes experimental_run_steps_on_iterator
        experimental_should_init gather local_results mesh non_slot_devices num_replicas_in_sync
        parameter_devices read_var reduce reduce_to run set_replica_devices set_sharding sharding
        should_checkpoint should_save_summary update update_non_slot value_container
        values_from_function variable_created_in_scope worker_devices
    """,
    "Sum": "total",
    "SummaryWriter": "as_default close flush init set_as_default",
    "TPUClusterResolver": """
        connect get_coordination_service_leader get_job_name get_master get_tpu_system_metadata
        set_tpu_topology tpu_hardware_feature
    """,
    "TPUSystemMetadata": "devices num_cores num_hosts num_of_cores_per_host topology",
    "TaskGoneError": "index",
    "TensorSpec": "dtype is_compatible_with name shape",
    "TerminationConfig": "exit_fn grace_period save_fn termination_watcher_fn",
    "Topology": """
        cpu_device_name_at_coordinates device_coordinates mesh_rank mesh_shape missing_devices
        num_tasks num_tpus_per_task serialized task_ordinal_at_coordinates
        tpu_device_name_at_coordinates tpu_device_ordinal_at_coordinates
    """,
    "TrainSpec": "hooks input_fn max_steps",
    "ValueContext": "num_replicas_in_sync replica_id_in_sync_group",
    "Variable": """
        aggregation assign assign_add assign_sub devices distribute_strategy dtype name ndim numpy
        partition_dimensions read_value shape size strategy synchronization trainable value
    """,
    "VariableAggregation": "MEAN NONE ONLY_FIRST_REPLICA SUM",
    "VariableCopy": "assign assign_add assign_sub dtype name numpy read_value shape value",
    "VariablePart": "assign assign_add assign_sub dtype name numpy read_value shape value",
    "VariableSynchronization": "AUTO NONE ON_READ ON_WRITE",
    "WatchReport": """
        compiling_seconds ended_by examples examples_per_second memory_bytes memory_of
        peak_memory_bytes programs retraces seconds shares slow_workers steps steps_per_second
        strategy to_json workers
    """,
    "WorkerLostError": "workers",
}


def _names(classes: list[type]) -> set[str]:
    return {name for cls in classes for name in own_names(cls)}


def _added(cls: type) -> set[str]:
    public = [base for base in cls.__mro__[1:] if base in public_classes()]
    inherited = [each for base in public for each in bases(base)]
    return _names(bases(cls)) - _names(inherited)


def test_public_classes_show_what_the_table_lists():
    expected = {name: set(text.split()) for name, text in ATTRIBUTES.items()}
    found = {cls.__name__: names for cls in public_classes() if (names := _added(cls))}
    differing = {
        name: {
            "not in the table": sorted(found.get(name, set()) - expected.get(name, set())),
            "not in the class": sorted(expected.get(name, set()) - found.get(name, set())),
        }
        for name in expected.keys() | found.keys()
        if expected.get(name) != found.get(name)
    }
    assert not differing


def test_the_table_is_sorted():
    assert list(ATTRIBUTES) == sorted(ATTRIBUTES)
    assert all(text.split() == sorted(text.split()) for text in ATTRIBUTES.values())


def test_no_two_public_classes_have_the_same_name():
    names = [cls.__name__ for cls in public_classes()]
    assert len(names) == len(set(names))

# SPDX-License-Identifier: MIT OR Apache-2.0
"""How the tests run `tonnage` with a real torch.

`TONNAGE` names the binary, `TORCH_PYTHON` a Python with torch. Recordings are
read with pyarrow, which shares no code with what wrote them.

CI runs a slice: what is named in `WHOLE` is left out unless `TORCH_TESTS=all`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow.ipc
import pytest

SCRIPTS = Path(__file__).parent / "scripts"
TONNAGE = os.environ.get("TONNAGE", str(Path(__file__).parents[2] / "target" / "debug" / "tonnage"))
PYTHON = os.environ.get("TORCH_PYTHON", "python")
HOOK = Path(__file__).parents[2] / "crates" / "tonnage-run" / "src" / "hook"
# Tests import modules of the package `tonnage_hook`.
sys.path.append(str(HOOK))
#: The GPU of tests that do not name one.
os.environ.setdefault("TONNAGE_GPU", "h100-80gb")

# Tests read what their jobs write; test_harmless.py takes this out again.
os.environ["TONNAGE_PASS_THROUGH"] = tempfile.gettempdir()

#: Tests that take long, or that others of the slice cover in part: parts of their names.
WHOLE = (
    "test_attach.py::",
    "test_autotune.py::test_an_autotuner_takes_the_first_and_the_verdict_says_so",
    "test_autotune.py::test_flashinfer_needs_no_nvcc",
    "test_autotune.py::test_inductor_before_torch_2_7",
    "test_autotune.py::test_kernels_that_cannot_be_launched",
    "test_causes.py::test_a_cause_is_named_and_no_advice_does_harm[added_gradient]",
    "test_causes.py::test_a_cause_is_named_and_no_advice_does_harm[adversaries]",
    "test_causes.py::test_a_cause_is_named_and_no_advice_does_harm[argument_of_backward]",
    "test_causes.py::test_a_cause_is_named_and_no_advice_does_harm[attribute_of_a_module]",
    "test_causes.py::test_a_cause_is_named_and_no_advice_does_harm[closure]",
    "test_causes.py::test_a_cause_is_named_and_no_advice_does_harm[collected_cycle]",
    "test_causes.py::test_a_cause_is_named_and_no_advice_does_harm[cycle_of_a_function]",
    "test_causes.py::test_a_cause_is_named_and_no_advice_does_harm[cycle_of_objects]",
    "test_causes.py::test_a_cause_is_named_and_no_advice_does_harm[differences]",
    "test_causes.py::test_a_cause_is_named_and_no_advice_does_harm[folds]",
    "test_causes.py::test_a_cause_is_named_and_no_advice_does_harm[hooks_pile_up]",
    "test_causes.py::test_a_cause_is_named_and_no_advice_does_harm[recurrent]",
    "test_causes.py::test_a_cause_is_named_and_no_advice_does_harm[replay_buffer]",
    "test_causes.py::test_a_cause_is_named_and_no_advice_does_harm[resumed_step]",
    "test_causes.py::test_a_cause_is_named_and_no_advice_does_harm[two_views]",
    "test_changes.py::test_a_change_gives_what_the_printed_lines_give[",
    "test_changes.py::test_operations_and_bytes_of_a_step_are_those_of_the_formula[bfloat16-checkpointed]",
    "test_check.py::test_a_budget_that_cannot_be_run",
    "test_check.py::test_a_limit_is_not_accepted_away",
    "test_check.py::test_growth_of_too_few_steps",
    "test_check.py::test_one_extra_live_activation",
    "test_doctor.py::test_a_working_environment",
    "test_explain.py::test_a_cache_of_keys_and_values",
    "test_explain.py::test_a_checkpoint_around_the_whole_model",
    "test_explain.py::test_a_forward_function_may_turn_gradients_off_itself[torch.enable_grad()",
    "test_explain.py::test_a_forward_function_may_turn_gradients_off_itself[torch.inference_mode()",
    "test_explain.py::test_a_forward_function_may_turn_gradients_off_itself[torch.no_grad()",
    "test_explain.py::test_a_function_that_calls_the_teacher",
    "test_explain.py::test_a_line_that_calls_the_teacher",
    "test_explain.py::test_a_list_of_exceptions_keeps",
    "test_explain.py::test_a_loss_is_no_forward_pass",
    "test_explain.py::test_a_model_that_gradients_go_through",
    "test_explain.py::test_a_teacher_that_no_optimizer_trains_needs_no_gradients[result",
    "test_explain.py::test_an_exception_that_ends_the_script",
    "test_explain.py::test_checkpointing_gives_the_peak",
    "test_explain.py::test_checkpointing_keeps_an_output",
    "test_explain.py::test_copies_that_autocast_makes",
    "test_explain.py::test_gradients_of_parameters_that_no_optimizer_has",
    "test_explain.py::test_lines_of_a_notebook",
    "test_explain.py::test_lines_of_compiled_code",
    "test_explain.py::test_optimizers_inside_the_backward_pass_are_one_step[-",
    "test_explain.py::test_optimizers_inside_the_backward_pass_are_one_step[own",
    "test_explain.py::test_other_names_of_what_a_variable_keeps[",
    "test_explain.py::test_predictions_that_a_trainer_collects",
    "test_explain.py::test_totals_are_those_of_the_shapes_to_the_byte[llama_8b.py",
    "test_explain.py::test_what_a_variable_keeps_of_the_round_before",
    "test_explain.py::test_what_an_optimizer_keeps_in_lists",
    "test_failures.py::test_the_verdict_counts_failures_of_the_hook",
    "test_fit.py::test_a_constant_of_the_script_has_another_value",
    "test_fit.py::test_a_job_that_does_not_fit_gets_changes_that_a_fresh_run_confirms",
    "test_fit.py::test_a_length_that_does_not_fit_is_shortened",
    "test_fit.py::test_a_number_of_a_configuration_has_another_value_and_the_file_stays[config.json",
    "test_fit.py::test_a_number_of_a_configuration_has_another_value_and_the_file_stays[config.yaml",
    "test_fit.py::test_a_number_of_a_configuration_has_another_value_and_the_file_stays[itself",
    "test_fit.py::test_a_number_that_makes_no_difference",
    "test_fit.py::test_an_answer_ends_with_the_next_command",
    "test_fit.py::test_how_many_requests_a_server_holds",
    "test_fit.py::test_what_cannot_be_forked",
    "test_handshake.py::test_a_failed_check_is_a_limitation_and_the_result_is_not_exact[TN302",
    "test_handshake.py::test_a_failed_check_is_a_limitation_and_the_result_is_not_exact[TN303",
    "test_harmless.py::test_files_are_as_before_and_the_job_sees_its_writes[fabric.py-overlay]",
    "test_harmless.py::test_files_are_as_before_and_the_job_sees_its_writes[fabric.py-preload]",
    "test_harmless.py::test_files_are_as_before_and_the_job_sees_its_writes[plain.py-preload]",
    "test_harmless.py::test_files_are_as_before_and_the_job_sees_its_writes[trainer.py-overlay]",
    "test_harmless.py::test_files_are_as_before_and_the_job_sees_its_writes[trainer.py-preload]",
    "test_harmless.py::test_files_are_as_before_whichever_way_a_job_is_run_dry[forecast]",
    "test_harmless.py::test_files_are_as_before_whichever_way_a_job_is_run_dry[mcp]",
    "test_harmless.py::test_files_are_as_before_whichever_way_a_job_is_run_dry[serve-fit]",
    "test_harmless.py::test_fit_leaves_the_directory_of_a_script_that_rotates_checkpoints[overlay]",
    "test_harmless.py::test_fit_leaves_the_directory_of_a_script_that_rotates_checkpoints[preload]",
    "test_harmless.py::test_fit_leaves_the_files_that_an_import_writes[overlay]",
    "test_harmless.py::test_fit_leaves_the_files_that_an_import_writes[preload]",
    "test_harmless.py::test_folders_of_a_command_are_for_its_user_alone[fit]",
    "test_hook.py::test_a_peak_and_running_out_within_one_operator",
    "test_hook.py::test_an_operator_leaves_results_undefined",
    "test_hook.py::test_what_is_compiled_is_the_same",
    "test_host.py::test_a_checkpoint_is_cast_on_the_host",
    "test_host.py::test_a_model_built_on_the_host_costs_no_memory_there[False-True]",
    "test_host.py::test_a_model_built_on_the_host_costs_no_memory_there[True-False]",
    "test_host.py::test_what_is_filled_in_late",
    "test_kernels.py::test_a_program_may_compile_ahead_of_time",
    "test_kernels.py::test_what_compiled_code_changes_in_place",
    "test_kernels.py::test_without_values_kernels_do_nothing",
    "test_plugged.py::test_a_module_is_run_as_python_does",
    "test_plugged.py::test_a_quota_is_the_limit_of_its_process",
    "test_plugged.py::test_a_plan_of_a_dry_run_places_every_block",
    "test_plugged.py::test_a_snapshot_of_a_training_goes_back",
    "test_plugged.py::test_a_transformer_fits_on_a_smaller_gpu",
    "test_plugged.py::test_less_is_reserved[script1]",
    "test_plugged.py::test_memory_is_given_back",
    "test_plugged.py::test_running_out_is_told_as_it_is",
    "test_ranks.py::test_a_barrier_holds_the_host",
    "test_ranks.py::test_a_checkpoint_that_every_rank_reads",
    "test_ranks.py::test_a_rank_with_fewer_batches",
    "test_ranks.py::test_a_script_prints_no_more_warnings",
    "test_ranks.py::test_a_thread_that_takes_the_first_gpu",
    "test_ranks.py::test_buckets_of_ddp",
    "test_ranks.py::test_collectives_of_two_groups",
    "test_ranks.py::test_every_collective_operator_and_type[3]",
    "test_ranks.py::test_every_collective_operator_and_type[8]",
    "test_ranks.py::test_gradients_that_fsdp_has_not_summed",
    "test_ranks.py::test_large_objects_arrive",
    "test_ranks.py::test_messages_that_go_both_ways",
    "test_ranks.py::test_micro_batches_in_flight",
    "test_ranks.py::test_nccl_by_its_path",
    "test_ranks.py::test_outputs_that_a_pipeline_keeps",
    "test_ranks.py::test_processes_that_share_a_gpu",
    "test_ranks.py::test_ranks_that_the_script_starts_itself[fork]",
    "test_ranks.py::test_the_buffers_of_nccl_grow_with_its_communicators[None]",
    "test_ranks.py::test_what_a_dtensor_moves",
    "test_ranks.py::test_what_the_allocator_does_does_not_depend",
    "test_record.py::test_each_rank_has_its_rows",
    "test_record.py::test_verify_finds_nothing_but",
    "test_record.py::test_verify_names_",
    "test_replay.py::test_inference_with_a_cache",
    "test_replay.py::test_near_the_limit_with_retries",
    "test_replay.py::test_several_streams_and_a_pool[expandable_segments:True]",
    "test_replay.py::test_the_advice_of_tune_holds_in_the_real_torch",
    "test_replay.py::test_training_with_sequences_that_grow[expandable_segments:True]",
    "test_replay.py::test_training_with_sequences_that_grow[max_split_size_mb",
    "test_run.py::test_a_cuda_runtime_opened_by_its_path",
    "test_run.py::test_a_gpu_that_is_behind",
    "test_run.py::test_a_history_of_the_scripts_own",
    "test_run.py::test_a_job_that_used_no_gpu_memory",
    "test_run.py::test_a_launcher_that_only_waited",
    "test_run.py::test_a_process_that_ends_at_once_hands_over_its_history[ctypes",
    "test_run.py::test_a_profiled_script_ends",
    "test_run.py::test_a_script_that_records_before",
    "test_run.py::test_an_8b_model_does_not_fit_on_40_gib",
    "test_run.py::test_an_8b_model_fits_on_an_h100",
    "test_run.py::test_fits_means_that_the_margin_stays_free",
    "test_run.py::test_kernels_cost_no_time",
    "test_run.py::test_libraries_that_choose_by_a_kernels_architecture[a10-",
    "test_run.py::test_libraries_that_choose_by_a_kernels_architecture[b200-",
    "test_run.py::test_libraries_that_choose_by_a_kernels_architecture[rtx",
    "test_run.py::test_one_stream_does_not_depend",
    "test_run.py::test_two_processes_on_two_devices",
    "test_run.py::test_two_processes_share_the_memory_of_one_device",
    "test_run.py::test_two_runs_give_the_same_recording[expandable_segments:True]",
    "test_run.py::test_values_workers_forks_and_spawns[off]",
    "test_run.py::test_values_workers_forks_and_spawns[on]",
    "test_run.py::test_visible_devices",
    "test_run.py::test_what_a_server_of_notebooks_raises",
    "test_run.py::test_what_nccl_takes_is_named_without_a_rank",
    "test_run.py::test_what_was_in_use_after_several_failures",
    "test_run.py::test_without_a_gpu_nothing_is_simulated",
    "test_shard.py::test_rank_0_is_as_on_live_ranks[changed_gpt.py-fully-shard-4]",
    "test_shard.py::test_rank_0_is_as_on_live_ranks[changed_llama.py",
    "test_values.py::test_a_job_can_be_stopped_early_and_is_judged_as_far_as_it_ran[3s",
    "test_values.py::test_a_limit_of_the_script_is_told_from_a_full_gpu",
    "test_values.py::test_a_mask_is_spoken_of_only_where",
    "test_values.py::test_a_mode_of_fake_tensors",
    "test_values.py::test_a_parameter_with_attributes",
    "test_values.py::test_a_read_in_a_module_has",
    "test_values.py::test_a_size_by_unknown_values_follows_the_assumption_and_is_named[25",
    "test_values.py::test_an_error_that_a_script_raises_again",
    "test_values.py::test_masks_of_what_has_no_gradient",
    "test_values.py::test_solvers_succeed_unless",
    "test_values.py::test_texts_and_shapes_are_no_decisions",
    "test_values.py::test_the_need_of_a_job_that_was_stopped_early",
    "test_values.py::test_values_leave_every_event_and_stack_as_it_was[convolutions]",
    "test_values.py::test_values_leave_every_event_and_stack_as_it_was[transformer]",
    "test_values.py::test_warnings_of_torch_name",
    "test_values.py::test_what_a_function_made_is_free",
    "test_values.py::test_what_another_process_may_have_written",
    "test_world.py::test_a_rank_alone_does_what_it_does_among_others",
    "test_world.py::test_a_slow_rank_is_waited_for",
    "test_world.py::test_a_try_without_a_rank",
    "test_world.py::test_objects_of_a_rank_that_does_not_run",
    "test_world.py::test_one_rank_of_64[address-kept]",
    "test_world.py::test_one_rank_of_64[ddp-]",
    "test_world.py::test_one_rank_of_each_stage_of_a_pipeline",
    "test_world.py::test_ranks_that_run_say_each_other_objects",
    "test_world.py::test_symmetric_memory[options1]",
    "test_world.py::test_symmetric_memory[options2]",
    "test_world.py::test_symmetric_memory_of_two_machines",
)


def pytest_collection_modifyitems(config, items):
    if os.environ.get("TORCH_TESTS") == "all":
        return
    left_out = [item for item in items if is_left_out(item.nodeid)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def is_left_out(name):
    return any(part in name for part in WHOLE)


@dataclass
class Result:
    code: int
    out: str
    err: str
    seconds: float
    recording: Path

    @property
    def verdict(self):
        return json.loads(self.out)

    def table(self):
        return read_table(self.recording)


def read_table(path):
    with open(path, "rb") as file:
        return pyarrow.ipc.open_stream(file).read_all()


def environment(**more):
    """The environment of a run, without what would change its result."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "CUDA_"))}
    return {**kept, **more}


@pytest.fixture
def tonnage(tmp_path):
    """Runs `tonnage run` with a script of this folder; `--json` unless set otherwise."""

    def run(script, *arguments, options=(), command=None, json=True, timeout=300, hook_may_fail=False, **variables):
        recording = tmp_path / f"{len(list(tmp_path.glob('*.tonnage')))}.tonnage"
        command = command or [PYTHON, str(SCRIPTS / script), *arguments]
        # A test that sets the capacity is about the last byte, and not about the margin.
        exact = ["--margin", "0"] if "--capacity" in options and "--margin" not in options else []
        line = [TONNAGE, "run", *(["--json"] if json else []), "-o", str(recording), *options, *exact]
        line += ["--", *command]
        started = time.monotonic()
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=timeout, env=environment(**variables), cwd=tmp_path
        )
        result = Result(done.returncode, done.stdout, done.stderr, time.monotonic() - started, recording)
        if json and done.stdout and not hook_may_fail:
            assert not result.verdict.get("hook_failures"), result.verdict["hook_failures"]
            assert "TN305" not in done.stdout, "a process wrote a note that tonnage does not know"
        return result

    return run

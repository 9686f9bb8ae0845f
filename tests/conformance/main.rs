//! The conformance suite: what any kernel must do, run on three of them.
//!
//! A case is written once, as a function over a [`Runner`](runner::Runner): it runs an async body
//! on a kernel with virtual time and compares the list of events, with their times, as a whole. The
//! macro `on_every_kernel` makes three tests of it: for the kernel that programs run on; for the
//! reference kernel of this folder, which is slow, has no sockets, and implements the contract
//! `TrapHandler` a second time; and for a host of a simulated world, by sixty-four seeds.
//!
//! The list is the same on all of them, to the last event and millisecond. On the simulated kernel:
//!
//! | marked | what is compared |
//! | --- | --- |
//! | `in_any_order` | the list, with tasks chosen in order, at random and by priorities, by each seed; at random and by priorities, timers and packets come between any two steps |
//! | `in_order` | the list, with tasks in the order in which they became ready, by each seed: the case states, or relies on, the order of two ready tasks |
//! | random programs | with tasks in order, the trace of the real kernel; at random and by priorities, that every body ends once, that no task waits for ever, and that the same seed gives the same trace |
//! | `with_sockets` | as above, on the two kernels that have some |
//!
//! | file | holds |
//! | --- | --- |
//! | `reference.rs` | the reference kernel: its tables and its loop |
//! | `model/` | the rules of interruption a second time, as an executor that shares no code with pikake |
//! | `runner.rs` | the surroundings of a case on each kernel, and on the model |
//! | `on_the_model.rs` | the cases of interruption, run on the model |
//! | `decided.rs` | pikake's decisions where its ancestors disagree, line by line |
//! | `causes.rs` | which wait returns a cause, and when: answers, branches, several causes at once |
//! | `permits.rs` | permits of a wait queue: who gets them, and where they are when a waiter leaves |
//! | `moves.rs` | waits that move, are forgotten or dropped; tasks that are dropped |
//! | `uninterruptible.rs` | waits that cannot be interrupted |
//! | `eager.rs` | tasks that begin at once, inside the step that spawns them |
//! | `first_drafts.rs` | programs that a first draft of the rules of interruption got wrong |
//! | `cleanup.rs` | bodies that go on after an interruption: foreign futures, graces, shields |
//! | `curio_kernel.rs`, `curio_task.rs` | the assertions of Curio's tests of these names |
//! | `curio_sync.rs`, `curio_queue.rs` | the assertions of Curio's tests of these names; eventlet's rules for queues |
//! | `curio_threads.rs` | the assertions of Curio's `test_workers` and `test_thread`; eventlet's rules for pools |
//! | `shrapnel_sync.rs` | the assertions of Shrapnel's tests of its locks |
//! | `shrapnel.rs` | the assertions of Shrapnel's `test_interrupt`, `test_with_timeout`, `test_in_parallel` and `test_poller` |
//! | `sockets.rs` | timeouts, cancels and closing with sockets, on the real and the simulated kernel |
//! | `two_places.rs` | a trap from another crate, which waits for a socket or a moment, on the real and the simulated kernel |
//! | `random.rs`, `api.rs` | random programs, whose traces must be the same on every kernel and by the model; the calls that they make |
//!
//! # Curio's `test_kernel`
//!
//! | test | here |
//! | --- | --- |
//! | hello | `run_returns_the_value_of_main` |
//! | raise, task_run_error | `run_resumes_the_panic_of_main`; an `Err` is a value |
//! | sleep, clock | `a_sleep_lasts_as_long_as_it_says` |
//! | sleep_cancel | `cancel_interrupts_a_sleep` |
//! | sleep_timeout, sleep_ignore_timeout | `a_sleep_longer_than_its_timeout_times_out` |
//! | sleep_notimeout | `unused_timeout_does_not_reach_later_sleeps` |
//! | task_join, task_join_error | `join_returns_the_value_or_the_panic` |
//! | task_cancel | `a_cancel_waits_for_the_end`; right after `spawn`: `a_task_that_never_ran_is_dropped_unpolled` |
//! | task_cancel_poll | `shielded_sleep_completes_despite_a_cancel` |
//! | task_cancel_not_blocking | `request_cancel_returns_at_once` |
//! | task_cancel_join | `join_of_a_cancelled_task_is_an_error` |
//! | task_cancel_join_wait | `joiner_sees_a_cancel_by_another_task` |
//! | task_child_cancel | `forwarded_cancel_ends_the_children_first` |
//! | task_ready_cancel | `finished_sleep_returns_before_the_cancel` |
//! | double_cancel | `a_second_request_does_not_interrupt_the_cleanup` |
//! | nested_timeout, nested_context_timeout, …2, …3 | `nested_deadlines_are_reported_by_their_owners_alone`, `equal_deadlines_are_the_outermost_ones`; one form only |
//! | nested_timeout_uncaught, nested_context_timeout_uncaught | `propagated_inner_timeout_is_not_the_outer` |
//! | nested_timeout_none | `scope_without_deadline_keeps_the_outer` |
//! | sleep_0_starvation | `endless_yields_starve_no_task`, `an_endless_yielder_does_not_starve_sockets` |
//! | ping_pong_starvation | `mutual_wakes_starve_no_third_task` |
//! | task_cancel_timeout | decided otherwise: `cleanup_after_a_cancel_keeps_outer_deadlines` |
//! | reentrant_kernel | `nested_kernel_is_an_error` |
//! | pending_cancellation | `pending_cancel_interrupts_every_wait_that_suspends`, `a_pending_timeout_is_gone_with_its_scope` |
//! | single_stepping | not here: `Kernel::turn`, in `kernel/tests/kernel/runs.rs` |
//! | io_registration | `refusing_a_second_reader_leaves_the_first`, `cancelling_a_writer_leaves_the_reader_working` |
//! | coro_partial | not applicable: a future is a future |
//! | custom_cancel | `a_cancel_carries_its_reason`: a text, not a class |
//! | timeout_badness | `an_overrun_without_waits_is_reported_as_late` |
//! | kernel_no_shutdown, kernel_exit | not here: the kernel as its owner sees it, in `kernel/tests/kernel/runs.rs` |
//! | kernel_badtrap | not applicable: there is no unknown trap |
//! | kernel_multischedule | `an_event_beats_a_timeout_of_its_turn` |
//! | kernel_debug | not here: observers, in `kernel/tests/kernel/order.rs` |
//!
//! # Curio's `test_task`
//!
//! | test | here |
//! | --- | --- |
//! | cancel_noblock | `request_cancel_returns_and_cancel_waits` |
//! | cancel_custom_exception, …_instance | `first_cancel_reason_is_reported`, by value |
//! | task_group, task_group_existing | `group_results_are_in_spawn_order`; groups adopt no tasks |
//! | task_group_daemon, task_join_daemon | `daemons_give_no_results_to_the_group` |
//! | task_group_daemon_error | `daemons_end_when_the_block_fails` |
//! | task_any_cancel, task_group_result | `first_result_cancels_the_rest` |
//! | task_any_error | `a_failure_may_end_first_too` |
//! | task_group_iter, task_group_join_done | `members_are_taken_as_they_end` |
//! | task_wait_none, task_group_cancel_remaining | `the_rest_of_a_group_can_be_cancelled` |
//! | task_group_error | `one_failure_cancels_the_others` |
//! | task_group_error_block | `block_error_cancels_the_members` |
//! | task_group_join | not applicable: a member is joined by its group alone |
//! | task_group_cancel | `owner_cancel_ends_the_members_first` |
//! | task_group_timeout | `a_timeout_around_a_group_cancels_its_members` |
//! | task_group_use_error, errors | `a_group_that_has_ended_takes_no_members`; results before the end cannot be asked for |
//! | task_group_empty, taskgroup_misc | `empty_group_has_no_results` |
//! | defer_cancellation, disable_cancellation_function | `shield_delays_a_cancel_to_its_end` |
//! | explicit_raise_cancel_disable, disable_cancellation_explicit_raise | `interruption_inside_a_shield_is_its_output` |
//! | self_cancellation | `self_cancel_interrupts_the_next_wait` |
//! | set_cancellation | not applicable: no call sets a pending interruption |
//! | contextvars | `values_of_a_task_are_its_own` |
//! | task_diag | `new_task_has_its_id_and_name` |
//! | late_join | `a_cancel_after_the_end_changes_nothing` |
//! | diag | not applicable: a future has no stack to extract |
//!
//! # Curio's `test_sync`
//!
//! | test | here |
//! | --- | --- |
//! | event_get_wait | `setting_an_event_answers_its_waiters` |
//! | event_get_immediate | `a_wait_on_a_set_event_returns_immediately` |
//! | event_wait_cancel, event_wait_timeout, lock_acquire_cancel, lock_acquire_timeout, sema_acquire_cancel, sema_acquire_timeout, cond_wait_cancel, cond_wait_timeout | `every_wait_can_be_cancelled_or_time_out` |
//! | event_wait_notimeout | `an_event_in_time_leaves_no_timeout` |
//! | lock_sequence, sema_sequence | `workers_take_turns_in_order_of_arrival` |
//! | rlock_reenter | `a_reentrant_lock_admits_its_holder_again` |
//! | rlock_notowner, condition_error | not applicable: who has no guard cannot unlock, wait or be without the lock |
//! | sema_sequence2 | `a_release_lets_the_third_of_three_in` |
//! | cond_sequence | `a_condition_wakes_its_longest_waiter` |
//! | cond_notify_all | `notified_waiters_wait_for_the_notifiers_lock` |
//! | cond_waitfor | `each_notification_checks_the_predicate_again` |
//! | TestResult::value, ::error | `a_promise_is_kept_once`; an error is a value |
//! | repr | not here: `debug_works_outside_a_kernel`, in `sync/tests/sync` |
//! | uevent_get_wait, uevent_get_twait, uevent_get_wait_timeout | not here: `threads_and_tasks_wait_for_one_event`, in `sync/tests/sync` |
//! | uevent_get_asyncio_set, …_wait, TestUniversalResult | not applicable: there is no asyncio; a thread blocks |
//!
//! # Curio's `test_queue`
//!
//! | test | here |
//! | --- | --- |
//! | queue_simple | `consumers_get_items_in_turn_and_join_waits` |
//! | queue_unbounded | `an_unbounded_queue_takes_everything_at_once` |
//! | queue_bounded | `a_bounded_queue_makes_the_producer_wait` |
//! | queue_get_cancel, queue_get_timeout | `a_get_can_be_cancelled_or_time_out` |
//! | queue_put_cancel, queue_put_timeout | `a_put_can_be_cancelled_or_time_out` |
//! | queue_qsize | `a_queue_knows_its_length` |
//! | priority_queue, lifo_queue | `priority_queues_give_the_smallest_stacks_the_last` |
//! | univ_queue_basic | not here: `new_queue_is_empty_outside_a_kernel`, in `sync/tests/sync` |
//! | univ_queue_sync_async, univ_queue_async_sync | not here: `thread_produces_and_joins_while_task_consumes` and the other way round, in `sync/tests/sync` |
//! | univ_queue_cancel | not here: `timed_out_gets_lose_no_item`, in `sync/tests/sync` |
//! | univ_queue_multiple_consumer, univ_queue_multiple_kernels | not here: `three_kernels_get_each_item_once`, in `sync/tests/sync` |
//! | uqueue_put_cancel | not here: `timed_out_put_returns_the_item`, in `sync/tests/sync` |
//! | univ_queue_withfd, uqueue_withfd_corner | not applicable: a queue has no descriptor |
//! | uqueue_asyncio_prod, uqueue_asyncio_consumer | not applicable: there is no asyncio |
//!
//! # eventlet's rules for queues and semaphores
//!
//! | rule | here |
//! | --- | --- |
//! | a queue of size 0 is a rendezvous, both empty and full | `a_queue_without_room_hands_items_over` |
//! | `task_done` once too often is an error | `one_task_done_too_many_is_an_error` |
//! | waiters of a queue are in no order | decided otherwise: `an_interrupted_getter_leaves_the_item_to_others`, and the orders in `sync/tests/sync` |
//! | a bounded semaphore refuses what is too much | not here: `misuse_returns_an_error`, in `sync/tests/sync` |
//! | a capped semaphore's `release` blocks | not applicable: a release never waits; that is a bounded queue |
//!
//! # Curio's `test_workers`
//!
//! | test | here |
//! | --- | --- |
//! | blocking | `blocking_call_does_not_delay_other_ticks` |
//! | worker_cancel, worker_timeout (thread) | `waits_for_workers_are_cancelled_or_time_out` |
//! | exception | `worker_failure_carries_its_error` |
//! | cpu, bad_cpu, worker_cancel and worker_timeout (process) | not applicable: there are no worker processes |
//! | that a cancelled worker's slot is free at once | decided otherwise: `cancelled_worker_counts_until_it_ends` |
//!
//! # Curio's `test_thread`
//!
//! | test | here |
//! | --- | --- |
//! | good_result, thread_good_result | `a_thread_awaits_and_is_joined` |
//! | bad_result, thread_bad_result | `thread_and_await_failures_reach_the_waiter` |
//! | cancel_result, thread_cancel_result | `cancel_of_a_thread_interrupts_its_await` |
//! | thread_sync | `thread_waits_for_a_lock_of_a_task`, by `sync::shared` |
//! | thread_timeout | `an_await_of_a_thread_can_time_out`: the deadline is inside the await |
//! | thread_disable_cancellation | `thread_shields_an_await` |
//! | thread_read | not applicable: files are read by a thread as always |
//! | task_group_thread | `a_thread_of_its_own_uses_a_group` |
//! | task_group_spawn_thread | `threads_are_members_of_groups` |
//! | await_passthrough | not applicable: what is no future is not awaited |
//! | errors | not here: `blocking_outside_a_thread_task_panics`, in `task/tests/task/threads.rs`; the rest is a matter of types |
//!
//! # eventlet's `tpool` and `GreenPool`
//!
//! | rule | here |
//! | --- | --- |
//! | a closure's failure reaches its waiter; a cancel of the waiter does not stop it | `worker_failure_carries_its_error`, `cancelled_worker_counts_until_it_ends` |
//! | `Proxy`: methods of an object in a thread | not here: `task/tests/task/proxy.rs`; an object has one thread, and its calls are in order |
//! | `spawn` waits for room | `a_group_with_a_limit_waits_for_room` |
//! | a member that spawns into its full pool runs the function itself | decided otherwise: `members_add_members_without_waiting_for_room`, in `task/tests/task/bounded.rs` |
//! | `resize` | not here: `changed_limit_leaves_running_members_alone`, in `task/tests/task/bounded.rs`; a limit of zero is refused |
//! | `imap`: results in order, with a limit on running and kept ones, and each error in its place | `results_and_failures_are_in_order` |
//!
//! # Shrapnel's tests of its locks
//!
//! | test | here |
//! | --- | --- |
//! | mutex: interrupted before and after the hand-over | `a_mutex_reaches_the_sixth`, `an_aborted_hand_over_reaches_the_sixth` |
//! | mutex: values of `trylock`, `unlock` | `a_mutex_says_whether_it_can_be_taken` |
//! | mutex: recursion | `a_reentrant_lock_admits_its_holder_again` |
//! | mutex: resume order | `workers_take_turns_in_order_of_arrival` |
//! | semaphore: interrupted before and after | `permits_reach_the_sixth` |
//! | semaphore: a line of interrupted threads is emptied by one release | `a_release_to_interrupted_waiters_is_not_lost` |
//! | semaphore: an exception survives one inside `release` | not applicable: no exceptions |
//! | isemaphore | `a_zero_count_wakes_all_uninterrupted_waiters`, `a_count_is_awaited_until_zero` |
//! | condition_variable | `a_notification_reaches_the_sixth`, `dropping_a_notified_waiter_notifies_the_next` |
//! | rw_lock | `a_read_write_lock_reaches_the_sixth`, `readers_behind_writers_that_are_interrupted_go_on`, `a_waiting_writer_keeps_new_readers_out` |
//!
//! # Timeouts and cancels of Curio's `test_io` and `test_socket`
//!
//! | test | here |
//! | --- | --- |
//! | accept_timeout, accept_cancel | `an_accept_that_timed_out_can_be_retried`, `an_accept_can_be_cancelled` |
//! | recv_timeout, recv_cancel | `a_read_can_time_out_or_be_cancelled` |
//! | recvfrom_timeout, recvfrom_cancel | `a_receive_can_time_out_or_be_cancelled` |
//! | read_exactly_timeout, read_exactly_incomplete | `a_timed_out_read_exact_reports_its_progress` |
//! | write_timeout, writelines_timeout | `a_timed_out_write_reports_its_progress` |
//! | readall_timeout, readlines_timeout | not applicable: a stream has no such calls |
//! | read_write_on_same_socket | `two_tasks_read_and_write_one_socket` |
//! | double_recv | `refusing_a_second_reader_leaves_the_first` |
//! | io_unregister | `cancelling_a_writer_leaves_the_reader_working` |

#![forbid(unsafe_code)]

extern crate pikake;

mod api;
mod causes;
mod cleanup;
mod curio_kernel;
mod curio_queue;
mod curio_sync;
mod curio_task;
mod curio_threads;
mod decided;
mod eager;
mod first_drafts;
mod model;
mod moves;
mod on_the_model;
mod permits;
mod random;
mod random_sync;
mod reference;
mod runner;
mod shrapnel;
mod shrapnel_sync;
mod sockets;
mod two_places;
mod uninterruptible;

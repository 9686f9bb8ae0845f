//! What all brokers do alike: each sentence of the contract is a case, and each case runs on each.

mod chords;
mod control;
mod expiry;
mod help;
mod outcomes;
mod place;
mod queues;
mod random;
mod schedules;
mod times;
mod unique;

/// All cases, as tests of one broker.
macro_rules! cases {
    ($run:path, $($file:ident::$case:ident),+ $(,)?) => {
        $(#[test]
        fn $case() {
            $run(|place| Box::pin(crate::$file::$case(place)));
        })+
    };
}

macro_rules! broker {
    ($broker:ident, $run:path, $programs:expr) => {
        mod $broker {
            cases! {
                $run,
                queues::declared_twice,
                queues::declared_as_found,
                queues::queue_that_is_not_there,
                queues::delivered_as_it_was,
                queues::first_in_first_out,
                queues::waits_for_what_is_published_later,
                queues::given_back_keeps_its_place,
                queues::prefetch_is_a_bound,
                queues::highest_priority_first,
                queues::priorities_are_told,
                queues::two_consumers_share,
                queues::what_a_dropped_consumer_had_comes_again,
                queues::what_a_lost_broker_had_comes_again,
                queues::a_receipt_is_good_once_and_for_one,
                queues::a_cancelled_consumer_ends,
                queues::an_interrupted_next_loses_nothing,
                queues::an_interrupted_publish_says_what_it_knows,
                queues::many_publish_at_once,
                queues::what_was_confirmed_outlives_a_close,
                queues::anything_is_carried,
                times::delivered_from_then_on,
                times::whose_time_comes_first_is_first,
                times::one_that_waits_does_not_hold_others_up,
                times::expired_is_not_delivered,
                expiry::who_waits_is_told,
                expiry::who_was_begun_in_time_goes_on,
                expiry::of_whom_nobody_asks_nothing_is_left,
                expiry::an_application_tells_of_it,
                times::buried_and_replayed,
                times::replayed_as_new,
                times::purged,
                outcomes::waited_for_before_it_is_stored,
                outcomes::waited_for_after_it_was_stored,
                outcomes::an_interrupted_wait_goes_on,
                outcomes::many_wait,
                outcomes::what_nobody_expects_is_not_waited_for,
                outcomes::forgotten,
                outcomes::one_waits_on_when_another_forgets,
                outcomes::an_id_sent_by_two_has_an_outcome_for_both,
                outcomes::a_job_that_has_ended_stays_so,
                outcomes::progress_is_kept_until_the_end,
                outcomes::removed_at_their_age,
                schedules::one_consumer_at_a_time,
                schedules::the_next_worker_leads_when_one_is_lost,
                chords::whole_with_its_last_member,
                chords::members_count_once,
                chords::many_join_at_once,
                chords::lists_of_values,
                chords::outcome_of_a_job_that_another_sends,
                unique::one_of_two_has_the_lock,
                unique::one_of_many_has_the_lock,
                unique::a_released_lock_is_free,
                unique::a_lock_ends_by_its_time,
                unique::long_keys_differ,
                control::workers_and_jobs_are_listed,
                control::a_revoke_is_known_later,
                control::events_are_delivered,
            }

            #[test]
            fn random_programs() {
                crate::random::run($programs, |steps| crate::random::on($run, steps));
            }
        }
    };
}

broker!(memory, crate::place::memory, 30);
broker!(memory_in_sim, crate::place::memory_in_sim, 20);
broker!(sqlite, crate::place::sqlite, 10);
broker!(memory_with_redis, crate::place::memory_with_redis, 4);
broker!(amqp, crate::place::amqp, 4);

/// Where a quorum queue may differ from a classic one.
mod amqp_replicated {
    cases! {
        crate::place::amqp_replicated,
        queues::declared_as_found,
        queues::priorities_are_told,
        queues::what_a_dropped_consumer_had_comes_again,
        queues::what_a_lost_broker_had_comes_again,
        queues::anything_is_carried,
        times::delivered_from_then_on,
        times::buried_and_replayed,
        times::purged,
    }
}

/// What RabbitMQ does not do: it says how many messages it purges, and no more, and cannot be asked
/// whether a message has been taken.
mod not_amqp {
    mod memory {
        cases! {
            crate::place::memory,
            outcomes::expected_twice_and_forgotten_once,
            expiry::who_is_purged_is_told_of,
            expiry::whom_nobody_takes_is_told_of,
        }
    }

    mod memory_in_sim {
        cases! {
            crate::place::memory_in_sim,
            outcomes::expected_twice_and_forgotten_once,
            expiry::who_is_purged_is_told_of,
            expiry::whom_nobody_takes_is_told_of,
            expiry::who_is_given_back_too_late_is_told_of,
        }
    }

    mod sqlite {
        cases! {
            crate::place::sqlite,
            outcomes::expected_twice_and_forgotten_once,
            expiry::who_is_purged_is_told_of,
            expiry::whom_nobody_takes_is_told_of,
            expiry::who_is_given_back_too_late_is_told_of,
        }
    }

    mod memory_with_redis {
        cases! {
            crate::place::memory_with_redis,
            outcomes::expected_twice_and_forgotten_once,
            expiry::who_is_purged_is_told_of,
        }
    }
}

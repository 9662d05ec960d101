//! One body per promise, run on every arm. The arms are the model of the kernel as v1 and as v2,
//! and the running kernel. The last needs root, and is otherwise skipped with the reason printed.
//! Interference at an exact moment, or a death at an exact point, runs on the model only
//! (`interference`, `deaths`). `model` compares the model with what kernels were seen to do.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod arms;
mod bodies;
mod classes;
#[path = "../common/mod.rs"]
mod common;
mod deaths;
mod in_place;
mod interference;
mod lab;
mod lies;
mod locked;
mod memory;
mod model;
mod model_memory;
mod nodes;
mod partitions;
mod resctrl;
mod threads;
mod weights;

/// Makes a body a test for each arm.
macro_rules! on_every_arm {
    ($from:ident: $($body:ident)*) => {$(
        mod $body {
            use super::{arms, $from as bodies};

            #[test]
            fn on_the_fake_v1() {
                bodies::$body(&mut arms::v1());
            }

            #[test]
            fn on_the_fake_v2() {
                bodies::$body(&mut arms::v2());
            }

            #[test]
            fn on_the_fake_v2_without_remote_partitions() {
                bodies::$body(&mut arms::old_v2());
            }

            mod live {
                use super::*;

                #[test]
                fn on_this_kernel() {
                    if let Some(mut arm) = arms::live() {
                        bodies::$body(&mut arm);
                    }
                }
            }
        }
    )*};
}

on_every_arm! { bodies:
    a_group_with_children_is_gathered_confined_and_put_back
    interrupts_and_kernel_work_are_kept_away_and_let_back
    a_quota_is_set_changed_and_taken_back
    a_group_is_given_a_low_weight_and_room_for_brakes
    a_weight_of_disks_is_the_groups_and_its_slices_and_goes_back
    what_somebody_else_has_changed_since_is_left
    a_task_moved_by_somebody_else_stays_there
    a_group_of_ours_is_killed_whole
    undoing_twice_changes_nothing
    tasks_are_matched_with_their_descendants
    a_child_born_in_a_home_goes_where_its_parent_came_from
    a_cgroup_is_confined_in_place_and_nobody_is_moved
    the_hierarchies_are_found
}

on_every_arm! { weights:
    weights_count_against_programs_outside
    a_weight_in_place_goes_back_and_an_idle_cgroup_is_left
}

on_every_arm! { in_place:
    a_cgroup_is_braked_in_place_and_put_back
}

on_every_arm! { memory:
    a_group_is_limited_in_memory_and_let_back
    memory_is_protected_with_its_ancestors_or_refused
    swappiness_of_a_group_is_set_and_comes_back_or_is_refused
    a_moved_limit_goes_back_whatever_it_reads
    a_group_is_frozen_and_thawed_and_nobody_elses_is
    what_we_let_go_on_and_others_stop_stays_stopped
    an_oom_score_comes_back_for_children_too
    sysctls_of_memory_are_set_and_taken_back
    pressure_is_told_of_the_machine_and_of_groups
    the_machines_memory_is_told
}

/// Bodies for machines with cache and bandwidth allocation.
mod divided {
    use super::{arms, resctrl};

    /// Runs a body on the modelled processors, and on the running kernel.
    macro_rules! on_every_processor {
        ($($body:ident)*) => {$(
            mod $body {
                use super::{arms, resctrl as bodies};

                #[test]
                fn on_the_fake_icelake_with_6_12() {
                    bodies::$body(&mut arms::divided(quell_kernel::fake::Rdt::icelake(), "6.12.0"));
                }

                #[test]
                fn on_the_fake_icelake_with_7_2() {
                    bodies::$body(&mut arms::divided(quell_kernel::fake::Rdt::icelake(), "7.2.0"));
                }

                #[test]
                fn on_the_fake_sparse_with_7_2() {
                    bodies::$body(&mut arms::divided(quell_kernel::fake::Rdt::sparse(), "7.2.0"));
                }

                mod live {
                    use super::*;

                    #[test]
                    #[ignore = "runs in the lab"]
                    fn on_this_kernel() {
                        if let Some(mut arm) = arms::live_divided() {
                            bodies::$body(&mut arm);
                        }
                    }
                }
            }
        )*};
    }

    on_every_processor! {
        what_there_is_is_discovered
        the_kernel_refuses_and_says_why
        new_groups_get_what_nobody_has_to_himself
        classes_and_ids_run_out_with_advice
        a_part_is_given_followed_and_taken_back
        what_others_set_since_stays
        what_we_mounted_goes_unless_others_use_it
        code_and_data_apart_are_divided_alike
    }
}

/// Bodies for processors on which the kernel locks memory in a cache.
mod pseudo_locked {
    use super::{arms, locked};

    /// Runs a body on the modelled processor, and on the running kernel.
    macro_rules! where_memory_is_locked {
        ($($body:ident)*) => {$(
            mod $body {
                use super::{arms, locked as bodies};

                #[test]
                fn on_the_fake_goldmont_with_6_12() {
                    bodies::$body(&mut arms::divided(quell_kernel::fake::Rdt::goldmont(), "6.12.0"));
                }

                #[test]
                fn on_the_fake_goldmont_with_7_2() {
                    bodies::$body(&mut arms::divided(quell_kernel::fake::Rdt::goldmont(), "7.2.0"));
                }

                mod live {
                    use super::*;

                    #[test]
                    #[ignore = "runs in the lab"]
                    fn on_this_kernel() {
                        if let Some(mut arm) = arms::live_divided() {
                            bodies::$body(&mut arm);
                        }
                    }
                }
            }
        )*};
    }

    where_memory_is_locked! {
        the_kernel_locks_and_refuses_and_says_why
        memory_is_locked_and_let_go
        what_is_open_stays_locked_until_it_is_closed
    }
}

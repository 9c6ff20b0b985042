//! What every provider must do, as cases that any provider can run.
//!
//! Each case asks the attributes first: what they promise must work, what they deny must be
//! refused. Waiting is bounded by rounds of polling, never by a clock alone. A case that fails
//! panics; the name of the case is printed.
//!
//! ```no_run
//! # fn provider() -> Box<dyn dafs_fabric::Provider> { unimplemented!() }
//! use dafs_fabric::{Address, conformance};
//! let provider = provider();
//! let address = Address::parse("tcp://127.0.0.1:0").expect("an address");
//! let mut progress = std::thread::yield_now;
//! conformance::run_all(&mut conformance::Harness::new(&*provider, address, &mut progress));
//! ```

mod ending;
mod files;
mod limits;
mod named;
pub(crate) mod pair;
mod rdma;
mod sends;
mod setup;
mod shortcuts;
mod tagged;
mod traffic;
mod waiting;

use crate::engine::Provider;
use crate::types::Address;

/// What a case needs to know of the provider under test.
pub struct Harness<'a> {
    /// Under test.
    pub provider: &'a dyn Provider,
    /// Where cases listen, for example `tcp://127.0.0.1:0`. Each case listens anew.
    pub address: Address,
    /// Called in each round of waiting: the steps of a simulation, or a yield.
    pub progress: &'a mut dyn FnMut(),
    /// Decides sizes and orders in cases that vary them.
    pub seed: u64,
    /// Rounds after which a case gives up waiting.
    pub rounds_max: usize,
    /// Rounds in which what must not happen could have happened.
    pub settle_rounds: usize,
    pub(crate) case: &'static str,
}

impl<'a> Harness<'a> {
    /// A harness with generous limits.
    pub fn new(
        provider: &'a dyn Provider,
        address: Address,
        progress: &'a mut dyn FnMut(),
    ) -> Harness<'a> {
        Harness {
            provider,
            address,
            progress,
            seed: 1,
            rounds_max: 3_000_000,
            settle_rounds: 500,
            case: "",
        }
    }
}

/// A case.
pub type Case = fn(&mut Harness<'_>);

/// All cases by name.
pub const CASES: &[(&str, Case)] = &[
    ("connect_and_accept_carry_private_data", setup::connect_and_accept_carry_private_data),
    ("private_data_has_a_limit", setup::private_data_has_a_limit),
    ("reject_tells_the_reason", setup::reject_tells_the_reason),
    ("a_dropped_request_is_refused", setup::a_dropped_request_is_refused),
    ("nobody_listens_is_refused", setup::nobody_listens_is_refused),
    ("foreign_addresses_are_errors", setup::foreign_addresses_are_errors),
    ("messages_follow_connected", setup::messages_follow_connected),
    ("a_connection_attempt_can_be_given_up", setup::a_connection_attempt_can_be_given_up),
    ("queue_pair_numbers_are_not_used_again", setup::queue_pair_numbers_are_not_used_again),
    ("sends_arrive_in_order", sends::sends_arrive_in_order),
    ("unsignaled_sends_do_not_complete", sends::unsignaled_sends_do_not_complete),
    ("gather_and_scatter", sends::gather_and_scatter),
    ("empty_and_largest_messages", sends::empty_and_largest_messages),
    ("a_send_waits_for_a_receive", sends::a_send_waits_for_a_receive),
    ("a_long_message_is_a_length_error", sends::a_long_message_is_a_length_error),
    ("a_completion_gives_buffers_back", sends::a_completion_gives_buffers_back),
    ("one_engine_serves_64_queue_pairs", sends::one_engine_serves_64_queue_pairs),
    ("limits_are_enforced", limits::limits_are_enforced),
    ("limits_can_be_used", limits::limits_can_be_used),
    ("what_is_not_offered_is_refused", limits::what_is_not_offered_is_refused),
    ("local_memory_must_be_registered", limits::local_memory_must_be_registered),
    ("unknown_queue_pairs_are_refused", limits::unknown_queue_pairs_are_refused),
    ("a_full_send_queue_recovers", limits::a_full_send_queue_recovers),
    ("a_full_receive_queue_recovers", limits::a_full_receive_queue_recovers),
    ("rdma_write_places_data", rdma::rdma_write_places_data),
    ("rdma_read_fetches_data", rdma::rdma_read_fetches_data),
    ("reads_are_performed_in_order", rdma::reads_are_performed_in_order),
    ("the_target_sleeps", rdma::the_target_sleeps),
    ("bulk_transfers", rdma::bulk_transfers),
    ("a_write_is_placed_before_a_send", rdma::a_write_is_placed_before_a_send),
    ("access_rights_hold", rdma::access_rights_hold),
    ("access_bounds_hold", rdma::access_bounds_hold),
    ("foreign_keys_are_refused", rdma::foreign_keys_are_refused),
    ("only_shared_memory_is_registered", rdma::only_shared_memory_is_registered),
    ("registration_pins_pages", rdma::registration_pins_pages),
    ("ended_keys_are_refused", rdma::ended_keys_are_refused),
    ("an_unsignaled_fault_is_told", rdma::an_unsignaled_fault_is_told),
    ("a_write_and_a_send_go_together", shortcuts::a_write_and_a_send_go_together),
    ("a_refused_write_sends_nothing", shortcuts::a_refused_write_sends_nothing),
    ("a_receive_is_posted_again", shortcuts::a_receive_is_posted_again),
    ("short_messages_come_in_order", shortcuts::short_messages_come_in_order),
    ("what_is_named_is_read", named::what_is_named_is_read),
    ("a_name_that_is_refused_ends_nothing", named::a_name_that_is_refused_ends_nothing),
    ("names_have_limits", named::names_have_limits),
    ("many_names_beside_messages", named::many_names_beside_messages),
    ("the_last_answer_speaks_for_all", named::the_last_answer_speaks_for_all),
    ("a_named_read_ends_with_its_queue_pair", named::a_named_read_ends_with_its_queue_pair),
    ("tagged_data_lands", tagged::tagged_data_lands),
    ("tagged_data_is_scattered", tagged::tagged_data_is_scattered),
    ("large_tagged_data", tagged::large_tagged_data),
    ("many_tags_at_once", tagged::many_tags_at_once),
    ("an_unmatched_tag_pauses", tagged::an_unmatched_tag_pauses),
    ("a_paused_queue_pair_can_be_left", tagged::a_paused_queue_pair_can_be_left),
    ("a_cancelled_tag_is_thrown_away", tagged::a_cancelled_tag_is_thrown_away),
    ("cancel_in_mid_transfer", tagged::cancel_in_mid_transfer),
    ("a_tag_in_use_is_refused", tagged::a_tag_in_use_is_refused),
    ("long_tagged_data_is_a_length_error", tagged::long_tagged_data_is_a_length_error),
    ("tagged_data_never_overtakes_a_send", tagged::tagged_data_never_overtakes_a_send),
    ("data_of_files_lands", files::data_of_files_lands),
    ("a_file_that_is_cut_breaks_the_queue_pair", files::a_file_that_is_cut_breaks_the_queue_pair),
    ("disconnect_returns_all_work", ending::disconnect_returns_all_work),
    ("disconnect_in_mid_transfer", ending::disconnect_in_mid_transfer),
    ("both_ends_disconnect", ending::both_ends_disconnect),
    ("a_dead_peer_is_noticed", ending::a_dead_peer_is_noticed),
    ("the_other_queue_pair_lives", ending::the_other_queue_pair_lives),
    ("mixed_traffic", traffic::mixed_traffic),
    ("wake_ends_a_wait", waiting::wake_ends_a_wait),
    ("nobody_sleeps_on_work", waiting::nobody_sleeps_on_work),
    ("arm_does_not_strand_posted_work", waiting::arm_does_not_strand_posted_work),
    ("rounds_go_on", waiting::rounds_go_on),
];

/// Runs one case.
///
/// # Panics
/// When the provider does not conform, or there is no such case.
pub fn run(name: &str, harness: &mut Harness<'_>) {
    let (name, case) = CASES.iter().find(|(known, _)| *known == name).expect("a known case");
    harness.case = name;
    let failure = Announce(name, harness.seed);
    case(harness);
    std::mem::forget(failure);
}

/// Runs all cases.
///
/// # Panics
/// When the provider does not conform.
pub fn run_all(harness: &mut Harness<'_>) {
    for (name, _) in CASES {
        run(name, harness);
    }
}

/// Names the case when it panics.
struct Announce(&'static str, u64);

impl Drop for Announce {
    #[allow(clippy::print_stderr, reason = "a test that fails says which")]
    fn drop(&mut self) {
        eprintln!("conformance case failed: {} (seed {})", self.0, self.1);
    }
}

//! The conformance suite finds a device that lies, about each of its attributes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{SimConfig, SimNet};
use crate::conformance::{self, Harness};
use crate::engine::Provider;
use crate::types::DeviceAttr;

type Change = fn(&mut DeviceAttr);

/// A lie has to be found in each of these.
const SEEDS: [u64; 3] = [1, 2, 3];

fn passes(net: &Arc<SimNet>, case: &str, seed: u64) -> bool {
    let provider = net.provider(1);
    let mut progress = || {
        net.step();
    };
    let address = provider.address();
    let mut harness = Harness::new(&provider as &dyn Provider, address, &mut progress);
    (harness.seed, harness.rounds_max, harness.settle_rounds) = (seed, 20_000, 300);
    catch_unwind(AssertUnwindSafe(|| conformance::run(case, &mut harness))).is_ok()
}

/// A device that is as `truth` makes it, and says what `lie` makes of that, fails `case`; one that
/// says the truth passes it.
fn is_found(case: &str, truth: Change, lie: Change) {
    for seed in SEEDS {
        let mut config = SimConfig::new(seed);
        config.attr.bulk_bytes_max = 200_000;
        config.attr.sge_max = 8;
        (config.attr.send_queue_depth, config.attr.receive_queue_depth) = (64, 100);
        config.attr.private_data_bytes_max = 56;
        truth(&mut config.attr);
        let mut claims = config.attr.clone();
        lie(&mut claims);
        assert!(passes(&SimNet::new(config.clone()), case, seed), "{case} fails the truth");
        let net = SimNet::lying(config, claims);
        assert!(!passes(&net, case, seed), "{case} does not find a lie (seed {seed})");
    }
}

const NOT_OFFERED: &str = "what_is_not_offered_is_refused";

#[test]
fn every_attribute_is_looked_at() {
    // Whoever adds one adds its lies below.
    let DeviceAttr {
        provider: _,
        schemes: _,
        rdma_write: _,
        rdma_read: _,
        tag_match: _,
        recoverable_access_fault: _,
        ordered_reads: _,
        write_before_send: _,
        target_cpu_free: _,
        registration_pins: _,
        local_registration: _,
        shared_memory: _,
        file_spans: _,
        verifies_names: _,
        header_bytes_max: _,
        send_bytes_max: _,
        bulk_bytes_max: _,
        sge_max: _,
        send_queue_depth: _,
        receive_queue_depth: _,
        private_data_bytes_max: _,
    } = DeviceAttr::none("sim");
}

#[test]
fn lies_about_addresses_are_found() {
    let case = "foreign_addresses_are_errors";
    is_found(case, |_| {}, |a| a.schemes = &["other"]);
    is_found(case, |_| {}, |a| a.schemes = &["sim", "other"]);
    is_found(case, |a| a.schemes = &["sim", "other"], |a| a.schemes = &["other"]);
}

#[test]
fn lies_about_one_sided_work_are_found() {
    is_found("rdma_write_places_data", |a| a.rdma_write = false, |a| a.rdma_write = true);
    is_found(NOT_OFFERED, |a| a.rdma_write = true, |a| a.rdma_write = false);
    is_found("rdma_read_fetches_data", |a| a.rdma_read = false, |a| a.rdma_read = true);
    is_found(NOT_OFFERED, |a| a.rdma_read = true, |a| a.rdma_read = false);
    is_found("the_target_sleeps", |a| a.target_cpu_free = false, |a| a.target_cpu_free = true);
}

#[test]
fn lies_about_faults_are_found() {
    let (dies, lives): (Change, Change) =
        (|a| a.recoverable_access_fault = false, |a| a.recoverable_access_fault = true);
    is_found("access_rights_hold", dies, lives);
    is_found("access_rights_hold", lives, dies);
}

#[test]
fn lies_about_order_are_found() {
    let case = "reads_are_performed_in_order";
    is_found(case, |a| a.ordered_reads = false, |a| a.ordered_reads = true);
    let case = "a_write_is_placed_before_a_send";
    is_found(case, |a| a.write_before_send = false, |a| a.write_before_send = true);
}

#[test]
fn lies_about_tags_are_found() {
    is_found("tagged_data_lands", |a| a.tag_match = false, |a| a.tag_match = true);
    is_found(NOT_OFFERED, |a| a.tag_match = true, |a| a.tag_match = false);
}

#[test]
fn lies_about_names_are_found() {
    let (knows, none): (Change, Change) =
        (|a| a.verifies_names = true, |a| a.verifies_names = false);
    is_found("what_is_named_is_read", none, knows);
    is_found(NOT_OFFERED, knows, none);
}

#[test]
fn lies_about_memory_are_found() {
    let (loose, pins): (Change, Change) =
        (|a| a.registration_pins = false, |a| a.registration_pins = true);
    is_found("registration_pins_pages", loose, pins);
    is_found("registration_pins_pages", pins, loose);
    let (takes_all, wants): (Change, Change) =
        (|a| a.local_registration = false, |a| a.local_registration = true);
    is_found("local_memory_must_be_registered", takes_all, wants);
    is_found("local_memory_must_be_registered", wants, takes_all);
    let (any, shared): (Change, Change) = (|a| a.shared_memory = false, |a| a.shared_memory = true);
    is_found("only_shared_memory_is_registered", any, shared);
    is_found("only_shared_memory_is_registered", shared, any);
    is_found("data_of_files_lands", |a| a.file_spans = false, |a| a.file_spans = true);
    is_found(NOT_OFFERED, |a| a.file_spans = true, |a| a.file_spans = false);
}

#[test]
fn lies_about_limits_are_found() {
    let as_is = |_: &mut DeviceAttr| {};
    is_found("empty_and_largest_messages", as_is, |a| a.header_bytes_max += 1);
    is_found("limits_are_enforced", as_is, |a| a.header_bytes_max -= 1);
    is_found("empty_and_largest_messages", as_is, |a| a.send_bytes_max += 1);
    is_found("limits_are_enforced", as_is, |a| a.send_bytes_max -= 1);
    is_found("limits_can_be_used", as_is, |a| a.bulk_bytes_max += 1);
    is_found("limits_are_enforced", as_is, |a| a.bulk_bytes_max -= 1);
    is_found("limits_can_be_used", as_is, |a| a.sge_max += 1);
    is_found("limits_are_enforced", as_is, |a| a.sge_max -= 1);
    is_found("a_full_send_queue_recovers", as_is, |a| a.send_queue_depth += 1);
    is_found("a_full_send_queue_recovers", as_is, |a| a.send_queue_depth -= 1);
    is_found("a_full_receive_queue_recovers", as_is, |a| a.receive_queue_depth += 1);
    is_found("a_full_receive_queue_recovers", as_is, |a| a.receive_queue_depth -= 1);
    is_found("private_data_has_a_limit", as_is, |a| a.private_data_bytes_max += 1);
    is_found("private_data_has_a_limit", as_is, |a| a.private_data_bytes_max -= 1);
}

//! The auth service and the controllers of two clusters, against two API servers: from a URL to an
//! identity with least privilege.
//!
//! Each test is a group of stories with its own initial state: see [`bed`].

#![allow(clippy::disallowed_methods, reason = "tasks of a test end with it")]

mod bed;
mod caller;
mod certificate;
mod confidential;
mod echo;
mod exposed;
mod families;
mod floods;
mod forgotten;
mod garbled;
mod generation;
mod given;
mod hang_up;
mod hostile;
mod logs;
mod manual;
mod namesake;
mod own_token;
mod parting;
mod pins;
mod renewal;
mod replay;
mod reset;
mod rights;
mod service;
mod short_lived;
mod side;
mod slow;
mod squatters;
mod story;
mod tarpits;

use replay::Lucca;

#[test]
fn clusters_without_identities_exchange_them() {
    bed::without_identities(async |rome, milan, _| {
        story::an_unreachable_url_is_reported(rome).await;
        namesake::a_cluster_with_the_same_name_is_rejected(rome, milan).await;
        story::missing_and_wrong_tokens_are_rejected_until_the_token_is_correct(rome, milan).await;
        certificate::the_private_key_never_leaves_its_cluster(rome, milan).await;
        certificate::kubectl_works_with_the_identity(rome, milan).await;
        story::the_return_token_is_accepted(rome, milan).await;
        story::duplicates_and_the_own_cluster_are_rejected(rome, milan).await;
    });
}

#[test]
fn identities_are_issued_once_with_least_privilege() {
    bed::with_identities(async |rome, milan, _| {
        service::an_identity_is_issued_once(milan).await;
        service::info_and_errors_are_returned(milan).await;
        generation::a_revoked_generation_is_never_issued_again(milan).await;
        certificate::other_common_names_are_not_signed(milan).await;
        rights::an_identity_has_least_privilege(rome, milan).await;
        short_lived::tokens_are_limited_to_one_day(rome, milan).await;
        exposed::the_auth_service_has_least_privilege(milan).await;
    });
}

#[test]
fn identities_are_renewed_and_revoked() {
    bed::with_identities(async |rome, milan, _| {
        certificate::a_certificate_is_renewed_before_it_expires(rome, milan).await;
        renewal::a_client_in_use_switches_to_the_renewed_certificate(rome, milan).await;
        renewal::a_token_is_renewed_without_the_auth_service(rome, milan).await;
        renewal::renewal_replaces_a_token_with_a_certificate(rome, milan).await;
        // Rome tries to use the service account of naples.
        service::issue_identity_to_naples(milan).await;
        certificate::a_revoked_certificate_stays_revoked(rome, milan).await;
    });
}

#[test]
fn identities_survive_changes_of_the_peer() {
    bed::with_identities(async |rome, milan, _| {
        story::an_identity_survives_a_change_of_the_auth_url(rome, milan).await;
        story::a_lost_identity_is_requested_again(rome, milan).await;
        story::an_identity_follows_the_address_of_the_api_server(rome, milan).await;
        pins::a_changed_certificate_is_rejected_until_a_user_pins_it(rome, milan).await;
        pins::the_source_of_the_pin_is_reported(rome, milan).await;
    });
}

#[test]
fn discovered_clusters_are_kept_or_expire() {
    bed::with_identities(async |rome, milan, _| {
        forgotten::a_cluster_that_returns_in_time_reuses_its_identity(rome, milan).await;
        manual::a_discovered_cluster_becomes_manual_when_a_user_adds_it(rome, milan).await;
        manual::a_discovered_duplicate_does_not_make_it_manual(rome, milan).await;
        manual::an_unreachable_cluster_has_its_discovery_type(rome).await;
    });
}

#[test]
fn incoming_peerings_are_added_and_removed() {
    bed::with_identities(async |rome, milan, _| {
        story::a_resource_request_adds_a_foreign_cluster(rome, milan).await;
        story::an_unreachable_cluster_can_be_deleted(rome, milan).await;
        story::deletion_leaves_no_objects(rome, milan).await;
        parting::the_last_release_deletes_the_namespace(rome, milan).await;
    });
}

#[test]
fn a_user_provided_certificate_is_served() {
    bed::with_identities(async |rome, _, logs| {
        service::a_user_provided_certificate_is_loaded_when_created_or_renewed(rome, logs).await;
        given::a_certificate_with_the_wrong_key_is_rejected(rome, logs).await;
    });
}

#[test]
fn identities_are_obtained_despite_faulty_peers() {
    bed::without_identities(async |rome, milan, logs| {
        certificate::without_a_signer_the_identity_is_a_token(rome, milan).await;
        floods::a_rate_limited_cluster_retries(rome, milan).await;
        echo::echoed_secrets_are_not_leaked(rome, logs).await;
        tarpits::unresponsive_peers_do_not_delay_others(rome, milan, logs).await;
    });
}

#[test]
fn malformed_requests_do_not_affect_other_clients() {
    bed::milan_alone(async |milan, _| {
        own_token::a_blank_token_is_regenerated(milan).await;
        families::ipv4_and_ipv6_clients_are_limited_separately(milan).await;
        hang_up::a_client_that_disconnects_can_retry(milan).await;
        hostile::malformed_requests_get_an_error(milan).await;
        hostile::oversized_requests_are_rejected(milan).await;
        hostile::other_protocols_are_rejected(milan).await;
        hostile::a_valid_request_succeeds(milan).await;
        tokio::join!(
            slow::incomplete_requests_time_out(milan),
            slow::idle_connections_time_out(milan),
            slow::clients_that_never_read_are_disconnected(milan),
            floods::connections_per_address_are_limited(milan),
        );
    });
}

#[test]
fn impersonation_does_not_affect_other_clusters() {
    bed::milan_alone(async |milan, _| {
        let lucca = Lucca::start(milan).await;
        replay::a_replayed_request_changes_nothing(milan, &lucca).await;
        replay::a_stolen_cluster_id_is_useless(milan, &lucca).await;
        floods::wrong_tokens_are_rate_limited(milan, &lucca).await;
        let lucca = lucca.at([127, 0, 0, 10]);
        replay::a_request_from_before_the_revocation_is_rejected(milan, &lucca).await;
        replay::one_of_two_concurrent_requests_succeeds(milan).await;
        squatters::taken_namespace_names_lock_nobody_out(milan).await;
        garbled::a_corrupt_record_can_be_revoked(milan).await;
    });
}

#[test]
fn floods_do_not_affect_other_clusters() {
    bed::milan_alone(async |milan, logs| {
        floods::two_hundred_clusters_can_share_one_address(milan).await;
        floods::requests_per_address_are_rate_limited(milan).await;
        floods::requests_per_cluster_are_rate_limited(milan).await;
        floods::concurrent_certificate_requests_do_not_delay_others(milan).await;
        floods::the_number_of_identities_is_limited(milan).await;
        floods::ten_thousand_unknown_clusters_use_little_memory(milan, logs).await;
    });
}

//! Two API servers, the auth service and the controllers of both clusters: from a URL to an
//! identity that can do what it should and nothing else.

#![allow(clippy::disallowed_methods, reason = "tasks of a test end with it")]

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
mod rights;
mod service;
mod short_lived;
mod side;
mod slow;
mod squatters;
mod story;
mod tarpits;

use replay::Lucca;
use side::Side;
use tokio::sync::Mutex;
use tombolo_testbed::{ClusterSpec, Testbed};

static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

#[tokio::test(flavor = "multi_thread")]
async fn clusters_get_identities_and_keep_to_their_rights() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let logs = logs::capture();
    let cluster = |name| ClusterSpec::new(name).control_plane_only();
    let bed = Testbed::builder("auth").cluster(cluster("rome")).cluster(cluster("milan"));
    let bed = bed.start().await.expect("the API servers start");
    let rome = Side::start(bed.cluster("rome")).await;
    let milan = Side::start(bed.cluster("milan")).await;

    story::a_wrong_url_is_named(&rome).await;
    namesake::a_cluster_of_the_same_name_is_refused(&rome, &milan).await;
    story::no_token_and_a_wrong_one_are_refused_until_there_is_the_right_one(&rome, &milan).await;
    certificate::an_identity_is_a_certificate_whose_key_stays_at_home(&rome, &milan).await;
    certificate::kubectl_can_use_it(&rome, &milan).await;
    story::the_token_that_came_along_is_enough(&rome, &milan).await;
    let mut confidential = [confidential::of(&rome).await, confidential::of(&milan).await].concat();
    story::a_cluster_is_known_once_and_never_to_itself(&rome, &milan).await;
    service::an_identity_is_given_once(&milan).await;
    service::it_says_who_it_is_and_what_is_wrong(&milan).await;
    certificate::nothing_else_is_signed(&milan).await;
    certificate::a_certificate_is_renewed_in_time(&rome, &milan).await;
    renewal::a_client_in_use_shows_the_next_certificate(&rome, &milan).await;
    renewal::a_token_is_renewed_by_itself_where_there_is_no_auth_service(&rome, &milan).await;
    renewal::a_token_becomes_a_certificate_when_it_is_renewed(&rome, &milan).await;
    certificate::a_certificate_that_was_taken_away_never_counts_again(&rome, &milan).await;
    generation::a_generation_is_told_before_and_never_comes_again(&milan).await;
    rights::an_identity_can_do_what_it_should_and_nothing_else(&rome, &milan).await;
    short_lived::an_identity_becomes_no_token_for_long(&rome, &milan).await;
    exposed::the_auth_service_can_do_next_to_nothing(&milan).await;
    story::an_identity_outlives_the_url_it_came_from(&rome, &milan).await;
    story::a_lost_identity_is_asked_for_again(&rome, &milan).await;
    story::an_identity_follows_the_api_server_that_it_is_for(&rome, &milan).await;
    pins::another_certificate_is_not_trusted_before_somebody_says_so(&rome, &milan).await;
    pins::who_said_it_is_told(&rome, &milan).await;
    forgotten::who_comes_back_in_time_is_known_at_once(&rome, &milan).await;
    manual::what_was_found_stays_once_somebody_names_it(&rome, &milan).await;
    manual::what_was_only_found_names_nobody(&rome, &milan).await;
    manual::what_can_not_be_reached_says_who_made_it(&rome).await;
    story::a_request_makes_a_cluster_known(&rome, &milan).await;
    story::what_was_never_reached_can_be_deleted(&rome, &milan).await;
    story::what_is_deleted_leaves_nothing(&rome, &milan).await;
    service::a_given_certificate_is_used_as_soon_as_it_is_there(&rome, &logs).await;
    given::a_certificate_without_its_key_is_not_used(&rome, &logs).await;
    parting::the_last_to_go_takes_the_namespace_along(&rome, &milan).await;
    certificate::where_nobody_signs_there_is_a_token(&rome, &milan).await;
    floods::a_cluster_that_is_told_to_come_again_does(&rome, &milan).await;
    echo::what_it_repeats_is_told_nobody(&rome, &logs).await;
    tarpits::who_never_answers_keeps_nobody_waiting(&rome, &milan, &logs).await;

    confidential.extend([confidential::of(&rome).await, confidential::of(&milan).await].concat());
    confidential::is_told_nobody(&[&rome, &milan], &confidential, &logs).await;
    for side in [&rome, &milan] {
        logs.have_no(&side.token().await);
        logs.have_no(&side.secret("liqo", "liqo-nonce-key", "key").await);
    }
    logs.have_no("PRIVATE KEY");
    // The same, in base64.
    logs.have_no("LS0tLS1CRUdJTiBQUklWQVRF");
    logs.have_no_token();
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_hostile_callers_do_others_get_their_identities() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let logs = logs::capture();
    let cluster = ClusterSpec::new("milan").control_plane_only();
    let bed = Testbed::builder("hostile").cluster(cluster).start().await.expect("an API server");
    let milan = Side::start(bed.cluster("milan")).await;
    hostile::is_served(&milan).await;
    own_token::a_token_that_is_none_is_made_anew(&milan).await;
    families::callers_of_both_families_are_told_apart(&milan).await;
    hang_up::who_hangs_up_is_not_locked_out(&milan).await;

    hostile::what_is_no_request_gets_an_answer_that_says_so(&milan).await;
    hostile::what_is_too_large_is_not_read(&milan).await;
    hostile::what_is_another_protocol_is_not_spoken(&milan).await;
    hostile::is_served(&milan).await;

    tokio::join!(
        slow::who_never_ends_a_request_is_not_waited_for(&milan),
        slow::who_says_nothing_is_not_waited_for(&milan),
        slow::who_never_listens_is_not_waited_for(&milan),
    );
    hostile::is_served(&milan).await;

    let lucca = Lucca::start(&milan).await;
    replay::a_request_that_is_sent_again_makes_nothing_new(&milan, &lucca).await;
    replay::a_stolen_id_is_of_no_use(&milan, &lucca).await;
    floods::tokens_can_not_be_guessed(&milan, &lucca).await;
    let lucca = lucca.at([127, 0, 0, 10]);
    replay::an_old_request_gives_nothing_after_the_identity_was_taken_away(&milan, &lucca).await;
    replay::of_two_that_come_at_once_one_gets_it(&milan).await;
    squatters::names_that_are_taken_keep_nobody_out(&milan).await;
    garbled::a_record_that_can_not_be_read_can_be_taken_away(&milan).await;
    hostile::is_served(&milan).await;

    floods::two_hundred_clusters_may_come_at_once_from_one_address(&milan).await;
    floods::an_address_that_comes_too_often_is_told_so(&milan).await;
    floods::a_cluster_that_comes_too_often_is_told_so(&milan).await;
    floods::who_overtakes_himself_keeps_nobody_waiting(&milan).await;
    floods::an_address_gets_only_some_of_the_connections(&milan).await;
    floods::there_are_only_so_many_identities(&milan).await;
    floods::ten_thousand_invented_clusters_take_no_room(&milan, &logs).await;
    hostile::is_served(&milan).await;
    hostile::nothing_of_it_is_told(&milan, &logs).await;
}

//! Two API servers, the auth service and the controllers of both clusters: from a URL to an
//! identity that can do what it should and nothing else.
//!
//! Each test is a group of stories that starts from a state of its own: see [`bed`].

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
fn strangers_get_to_know_each_other() {
    bed::strangers(async |rome, milan, _| {
        story::a_wrong_url_is_named(rome).await;
        namesake::a_cluster_of_the_same_name_is_refused(rome, milan).await;
        story::no_token_and_a_wrong_one_are_refused_until_there_is_the_right_one(rome, milan).await;
        certificate::an_identity_is_a_certificate_whose_key_stays_at_home(rome, milan).await;
        certificate::kubectl_can_use_it(rome, milan).await;
        story::the_token_that_came_along_is_enough(rome, milan).await;
        story::a_cluster_is_known_once_and_never_to_itself(rome, milan).await;
    });
}

#[test]
fn identities_are_given_once_and_keep_to_their_rights() {
    bed::acquainted(async |rome, milan, _| {
        service::an_identity_is_given_once(milan).await;
        service::it_says_who_it_is_and_what_is_wrong(milan).await;
        generation::a_generation_is_told_before_and_never_comes_again(milan).await;
        certificate::nothing_else_is_signed(milan).await;
        rights::an_identity_can_do_what_it_should_and_nothing_else(rome, milan).await;
        short_lived::an_identity_becomes_no_token_for_long(rome, milan).await;
        exposed::the_auth_service_can_do_next_to_nothing(milan).await;
    });
}

#[test]
fn identities_are_renewed_and_taken_away() {
    bed::acquainted(async |rome, milan, _| {
        certificate::a_certificate_is_renewed_in_time(rome, milan).await;
        renewal::a_client_in_use_shows_the_next_certificate(rome, milan).await;
        renewal::a_token_is_renewed_by_itself_where_there_is_no_auth_service(rome, milan).await;
        renewal::a_token_becomes_a_certificate_when_it_is_renewed(rome, milan).await;
        // Whose account rome tries to use.
        service::naples_gets_an_identity(milan).await;
        certificate::a_certificate_that_was_taken_away_never_counts_again(rome, milan).await;
    });
}

#[test]
fn identities_outlive_what_changes_around_them() {
    bed::acquainted(async |rome, milan, _| {
        story::an_identity_outlives_the_url_it_came_from(rome, milan).await;
        story::a_lost_identity_is_asked_for_again(rome, milan).await;
        story::an_identity_follows_the_api_server_that_it_is_for(rome, milan).await;
        pins::another_certificate_is_not_trusted_before_somebody_says_so(rome, milan).await;
        pins::who_said_it_is_told(rome, milan).await;
    });
}

#[test]
fn clusters_that_were_found_are_kept_or_forgotten() {
    bed::acquainted(async |rome, milan, _| {
        forgotten::who_comes_back_in_time_is_known_at_once(rome, milan).await;
        manual::what_was_found_stays_once_somebody_names_it(rome, milan).await;
        manual::what_was_only_found_names_nobody(rome, milan).await;
        manual::what_can_not_be_reached_says_who_made_it(rome).await;
    });
}

#[test]
fn clusters_that_ask_are_known_and_those_that_part_leave_nothing() {
    bed::acquainted(async |rome, milan, _| {
        story::a_request_makes_a_cluster_known(rome, milan).await;
        story::what_was_never_reached_can_be_deleted(rome, milan).await;
        story::what_is_deleted_leaves_nothing(rome, milan).await;
        parting::the_last_to_go_takes_the_namespace_along(rome, milan).await;
    });
}

#[test]
fn a_given_certificate_is_shown() {
    bed::acquainted(async |rome, _, logs| {
        service::a_given_certificate_is_used_as_soon_as_it_is_there(rome, logs).await;
        given::a_certificate_without_its_key_is_not_used(rome, logs).await;
    });
}

#[test]
fn whatever_other_clusters_do_an_identity_is_had_at_last() {
    bed::strangers(async |rome, milan, logs| {
        certificate::where_nobody_signs_there_is_a_token(rome, milan).await;
        floods::a_cluster_that_is_told_to_come_again_does(rome, milan).await;
        echo::what_it_repeats_is_told_nobody(rome, logs).await;
        tarpits::who_never_answers_keeps_nobody_waiting(rome, milan, logs).await;
    });
}

#[test]
fn whatever_callers_say_others_get_their_identities() {
    bed::milan_alone(async |milan, _| {
        own_token::a_token_that_is_none_is_made_anew(milan).await;
        families::callers_of_both_families_are_told_apart(milan).await;
        hang_up::who_hangs_up_is_not_locked_out(milan).await;
        hostile::what_is_no_request_gets_an_answer_that_says_so(milan).await;
        hostile::what_is_too_large_is_not_read(milan).await;
        hostile::what_is_another_protocol_is_not_spoken(milan).await;
        hostile::is_served(milan).await;
        tokio::join!(
            slow::who_never_ends_a_request_is_not_waited_for(milan),
            slow::who_says_nothing_is_not_waited_for(milan),
            slow::who_never_listens_is_not_waited_for(milan),
            floods::an_address_gets_only_some_of_the_connections(milan),
        );
    });
}

#[test]
fn whoever_callers_say_they_are_others_get_their_identities() {
    bed::milan_alone(async |milan, _| {
        let lucca = Lucca::start(milan).await;
        replay::a_request_that_is_sent_again_makes_nothing_new(milan, &lucca).await;
        replay::a_stolen_id_is_of_no_use(milan, &lucca).await;
        floods::tokens_can_not_be_guessed(milan, &lucca).await;
        let lucca = lucca.at([127, 0, 0, 10]);
        replay::an_old_request_gives_nothing_after_the_identity_was_taken_away(milan, &lucca).await;
        replay::of_two_that_come_at_once_one_gets_it(milan).await;
        squatters::names_that_are_taken_keep_nobody_out(milan).await;
        garbled::a_record_that_can_not_be_read_can_be_taken_away(milan).await;
    });
}

#[test]
fn however_many_callers_come_others_get_their_identities() {
    bed::milan_alone(async |milan, logs| {
        floods::two_hundred_clusters_may_come_at_once_from_one_address(milan).await;
        floods::an_address_that_comes_too_often_is_told_so(milan).await;
        floods::a_cluster_that_comes_too_often_is_told_so(milan).await;
        floods::who_overtakes_himself_keeps_nobody_waiting(milan).await;
        floods::there_are_only_so_many_identities(milan).await;
        floods::ten_thousand_invented_clusters_take_no_room(milan, logs).await;
    });
}

//! The gRPC services besides the address service: health checks and server reflection.

use std::{
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use jiff::Timestamp;
use tokio_stream::StreamExt as _;
use tonic_health::{
    ServingStatus,
    pb::{HealthCheckRequest, health_client::HealthClient},
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use tombolo_testbed::eventually;

use crate::side::Side;

#[tokio::test(flavor = "multi_thread")]
async fn health_checks_report_whether_it_serves() {
    let (rome, _alone) = Side::alone("rome").await;
    let (channel, service, ended) = rome.serve_a_channel().await;
    let mut health = HealthClient::new(channel);
    let mut watches = Vec::new();
    for name in ["", "ipam"] {
        let request = HealthCheckRequest { service: name.into() };
        let now = health.check(request.clone()).await.unwrap().into_inner().status;
        assert_eq!(now, ServingStatus::Serving as i32, "{name:?}");
        watches.push(health.watch(request).await.unwrap().into_inner());
    }
    let other = HealthCheckRequest { service: "other".into() };
    assert_eq!(health.check(other).await.unwrap_err().code(), tonic::Code::NotFound);
    service.trigger();
    for watch in &mut watches {
        let mut last = None;
        while last != Some(ServingStatus::NotServing as i32) {
            last = Some(watch.next().await.expect("a new status").unwrap().status);
        }
    }
    // Health watches do not delay the shutdown.
    ended.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_the_service_triggers_the_shutdown() {
    let (rome, _alone) = Side::alone("rome").await;
    let is_broken = Arc::new(AtomicBool::new(false));
    let breaks = is_broken.clone();
    let clock = move || match breaks.load(Ordering::Relaxed) {
        true => resume_unwind(Box::new("the clock is broken")),
        false => Timestamp::now(),
    };
    let (ipam, _, service) = rome.serve_at(rome.client.clone(), Arc::new(clock)).await;
    ipam.external_cidr().await.expect("it answers");
    assert!(!service.is_triggered());
    is_broken.store(true, Ordering::Relaxed);
    ipam.external_cidr().await.expect_err("it breaks");
    eventually("the shutdown is triggered", async || service.is_triggered(), |it| *it).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn server_reflection_describes_the_service() {
    let (rome, _alone) = Side::alone("rome").await;
    let (channel, service, _) = rome.serve_a_channel().await;
    let mut reflection = ServerReflectionClient::new(channel);
    let mut call = async |request| {
        let request =
            ServerReflectionRequest { host: String::new(), message_request: Some(request) };
        let answers = reflection.server_reflection_info(tokio_stream::once(request)).await;
        let answer = answers.unwrap().into_inner().next().await.expect("an answer").unwrap();
        answer.message_response.expect("a message")
    };
    let listed = call(MessageRequest::ListServices(String::new())).await;
    let MessageResponse::ListServicesResponse(listed) = listed else { panic!("{listed:?}") };
    let names: Vec<_> = listed.service.into_iter().map(|service| service.name).collect();
    for name in ["ipam", "grpc.health.v1.Health"] {
        assert!(names.iter().any(|it| it == name), "{name} is not in {names:?}");
    }
    let file = call(MessageRequest::FileContainingSymbol("ipam".into())).await;
    let MessageResponse::FileDescriptorResponse(file) = file else { panic!("{file:?}") };
    let file = file.file_descriptor_proto.concat();
    let is_in = |name: &str| file.windows(name.len()).any(|part| part == name.as_bytes());
    assert!(is_in("MapEndpointIP") && is_in("GetRemotePodIPBatch"));
    service.trigger();
}

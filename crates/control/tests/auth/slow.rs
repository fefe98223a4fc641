//! Clients that never complete a request, stay idle or never read the response.

use tokio::io::AsyncWriteExt;

use crate::{
    caller::{Caller, read_until_closed},
    side::Side,
};

pub async fn incomplete_requests_time_out(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 0, 2]).await;
    let header = "POST /identity HTTP/1.1\r\nHost: liqo-auth\r\nContent-Length: 100\r\n";
    let body = format!("{header}\r\n{{\"clusterID\": ");
    let hoping = format!("{header}Expect: 100-continue\r\n\r\n");
    let (header, body, hoping) = tokio::join!(
        caller.send_raw(header.as_bytes()),
        caller.send_raw(body.as_bytes()),
        caller.send_raw(hoping.as_bytes())
    );
    assert!(!header.contains(" 200 "), "{header}");
    assert!(body.starts_with("HTTP/1.1 408 "), "{body}");
    assert!(hoping.contains("HTTP/1.1 408 "), "{hoping}");
}

pub async fn idle_connections_time_out(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 0, 2]).await;
    let no_tls = async |sent: &[u8]| {
        let mut tcp = caller.tcp().await.expect("TCP");
        tcp.write_all(sent).await.expect("sent");
        read_until_closed(&mut tcp).await
    };
    // The first bytes of a ClientHello.
    let half = [0x16, 3, 1, 1, 0, 1, 0, 0, 0xfc, 3, 3];
    let once = async {
        let mut line = caller.connect().await.expect("TLS");
        assert_eq!(line.request("GET", "/info", "").await.expect("an answer").status, 200);
        line.read_until_closed().await
    };
    let all = tokio::join!(
        no_tls(&[]),
        no_tls(&half),
        caller.send_raw(&[]),
        caller.send_raw(b"PRI *"),
        once
    );
    let (nothing, half, silent, preface, idle) = all;
    for said in [nothing, half, silent, preface, idle] {
        assert!(!said.contains(" 200 "), "{said}");
    }
}

/// The client sends more requests than the socket buffers can hold responses, and reads none.
pub async fn clients_that_never_read_are_disconnected(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 0, 3]).await;
    let mut line = caller.connect().await.expect("TLS");
    let asked = 900;
    let all = "GET /info HTTP/1.1\r\nHost: liqo-auth\r\n\r\n".repeat(asked);
    line.send(all.as_bytes()).await.expect("sent");
    let gone = async || {
        let there = std::fs::read_to_string("/proc/net/tcp").expect("the connections");
        let from = format!("{:08X}:", u32::from_le_bytes([127, 0, 0, 3]));
        // The service's end of the connection has the client's address as its remote address.
        let open = |line: &&str| {
            let mut parts = line.split_whitespace().skip(2);
            let (other, state) = (parts.next(), parts.next());
            other.is_some_and(|other| other.starts_with(&from)) && state == Some("01")
        };
        there.lines().filter(open).count()
    };
    assert_eq!(gone().await, 1, "the connection is open");
    tombolo_testbed::eventually("the service closes the connection", gone, |open| *open == 0).await;
    let heard = line.read_until_closed().await.matches("HTTP/1.1 200").count();
    assert!(heard < asked, "all requests were answered");
}

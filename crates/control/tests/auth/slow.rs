//! Callers that begin to say something and never come to an end, or never listen.

use tokio::io::AsyncWriteExt;

use crate::{
    caller::{Caller, until_it_ends},
    side::Side,
};

pub async fn who_never_ends_a_request_is_not_waited_for(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 0, 2]).await;
    let header = "POST /identity HTTP/1.1\r\nHost: liqo-auth\r\nContent-Length: 100\r\n";
    let body = format!("{header}\r\n{{\"clusterID\": ");
    let hoping = format!("{header}Expect: 100-continue\r\n\r\n");
    let (header, body, hoping) = tokio::join!(
        caller.says(header.as_bytes()),
        caller.says(body.as_bytes()),
        caller.says(hoping.as_bytes())
    );
    assert!(!header.contains(" 200 "), "{header}");
    assert!(body.starts_with("HTTP/1.1 408 "), "{body}");
    assert!(hoping.contains("HTTP/1.1 408 "), "{hoping}");
}

pub async fn who_says_nothing_is_not_waited_for(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 0, 2]).await;
    let no_tls = async |sent: &[u8]| {
        let mut tcp = caller.tcp().await.expect("TCP");
        tcp.write_all(sent).await.expect("sent");
        until_it_ends(&mut tcp).await
    };
    // The first bytes of what could become a ClientHello.
    let half = [0x16, 3, 1, 1, 0, 1, 0, 0, 0xfc, 3, 3];
    let once = async {
        let mut line = caller.connect().await.expect("TLS");
        assert_eq!(line.asks("GET", "/info", "").await.expect("an answer").status, 200);
        line.ends().await
    };
    let all =
        tokio::join!(no_tls(&[]), no_tls(&half), caller.says(&[]), caller.says(b"PRI *"), once);
    let (nothing, half, silent, preface, idle) = all;
    for said in [nothing, half, silent, preface, idle] {
        assert!(!said.contains(" 200 "), "{said}");
    }
}

/// It asks more than fits between the two, and takes nothing of the answers.
pub async fn who_never_listens_is_not_waited_for(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 0, 3]).await;
    let mut line = caller.connect().await.expect("TLS");
    let asked = 900;
    let all = "GET /info HTTP/1.1\r\nHost: liqo-auth\r\n\r\n".repeat(asked);
    line.sends(all.as_bytes()).await.expect("sent");
    let gone = async || {
        let there = std::fs::read_to_string("/proc/net/tcp").expect("the connections");
        let from = format!("{:08X}:", u32::from_le_bytes([127, 0, 0, 3]));
        // Of the service's end: that is the one whose other end is at that address.
        let open = |line: &&str| {
            let mut parts = line.split_whitespace().skip(2);
            let (other, state) = (parts.next(), parts.next());
            other.is_some_and(|other| other.starts_with(&from)) && state == Some("01")
        };
        there.lines().filter(open).count()
    };
    assert_eq!(gone().await, 1, "it is open");
    tombolo_testbed::eventually("it is cut", gone, |open| *open == 0).await;
    let heard = line.ends().await.matches("HTTP/1.1 200").count();
    assert!(heard < asked, "all was answered");
}

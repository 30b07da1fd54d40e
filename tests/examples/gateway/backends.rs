//! Real backends behind the gateway: what they serve is limited, in whatever spelling a client asks for it.

use super::process::Gateway;
use crate::{
    matching::served::{Backend, flask, jetty},
    support::{Client, Folder},
};

// Regression: `post /login` passed a limit on POST without end, and Flask ran the handler of POST.
#[tokio::test]
async fn method_in_lower_case_is_limited_in_front_of_flask() {
    let (backend, folder) = (flask(), Folder::new());
    let gateway = gateway(
        &backend,
        &folder,
        "rules: [{ id: login, path: /login, method: POST, key: global, limit: 3/h }]",
    );
    let mut client = gateway.client().await;
    let mut statuses = Vec::new();
    for method in ["POST", "post", "Post", "post", "POST"] {
        let head = format!("{method} /login HTTP/1.1\r\nhost: test\r\ncontent-length: 0\r\n\r\n");
        client.send(&head).await;
        statuses.push(client.receive().await.status);
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert_eq!(client.get("/login").await.status, 200, "GET is not counted");
}

// Regression: Jetty served all of these, and the list did not forbid them.
#[tokio::test]
#[ignore = "needs Java and Jetty: see the head of tests/matching/served.rs"]
async fn segment_of_parameters_is_forbidden_in_front_of_jetty() {
    let backend = jetty();
    let folder = Folder::new();
    let gateway = gateway(
        &backend,
        &folder,
        "forbid: { path: \"/admin/{*rest}\" }\nrules: [{ id: all, key: global, limit: 1000/h }]",
    );
    let mut client = gateway.client().await;
    let mut direct = Client::connect(backend.address()).await;
    for path in [
        "/admin/secret",
        "/admin/secret/;",
        "/admin/secret/;x=1",
        "/;/admin/secret",
        "/admin/;/secret",
        "/%u0061dmin/secret",
    ] {
        assert_eq!(direct.get(path).await.status, 200, "{path} of Jetty");
        assert_eq!(client.get(path).await.status, 403, "{path}");
    }
    assert_eq!(client.get("/health").await.status, 200);
}

fn gateway(backend: &Backend, folder: &Folder, rules: &str) -> Gateway {
    let rules = folder.write("rules.yaml", rules);
    let backend = format!("http://{}", backend.address());
    let rules = rules.to_str().expect("text");
    Gateway::start(&["--no-load", "--backend", &backend, "--rules", rules])
}

import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.Map;
import javax.servlet.http.HttpServlet;
import javax.servlet.http.HttpServletRequest;
import javax.servlet.http.HttpServletResponse;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/** Serves the routes of tests/matching/served.rs with Jetty, and prints its port. */
public class JettyApp {
    static final Map<String, String> ROUTES = Map.of(
        "admin", "/admin/secret/*",
        "login", "/login/*",
        "users", "/users/7/files/*",
        "static", "/static/*",
        "orders", "/api/v1/orders/*",
        "health", "/health/*",
        "reports", "/reports/2024/*",
        "account", "/account/settings/*",
        "search", "/search/*",
        "upload", "/upload/avatar/*");

    public static void main(String[] arguments) throws Exception {
        Server server = new Server(new InetSocketAddress("127.0.0.1", 0));
        ServletContextHandler context = new ServletContextHandler();
        context.setCompactPath(true); // merges slashes
        ROUTES.forEach((name, path) -> context.addServlet(new ServletHolder(new Route(name)), path));
        server.setHandler(context);
        server.start();
        System.out.println(((ServerConnector) server.getConnectors()[0]).getLocalPort());
        server.join();
    }

    static class Route extends HttpServlet {
        private final String name;

        Route(String name) {
            this.name = name;
        }

        @Override
        protected void service(HttpServletRequest request, HttpServletResponse response) throws IOException {
            String rest = request.getPathInfo();
            if (name.equals("static") || rest == null || rest.equals("/")) {
                response.getWriter().print(name);
            } else {
                response.setStatus(404);
            }
        }
    }
}

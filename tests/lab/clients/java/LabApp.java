import com.sun.net.httpserver.HttpServer;
import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/**
 * A small service on pgjdbc and HikariCP: a thread per worker, which waits in its socket.
 * What its modes do and what it prints stands in ../__init__.py, once for all clients.
 */
public final class LabApp {
    private static final String ROW = "SELECT id, bucket, payload FROM lab_rows WHERE id = ?";
    private static final String ROWS = "SELECT id, bucket, payload FROM lab_rows WHERE id <= ?";
    private static final String IDS = "SELECT id FROM lab_rows WHERE id BETWEEN ? AND ? + 99";
    private static final String SCAN = "SELECT count(*) FROM lab_rows WHERE bucket = ?";
    private static final String SLEEP = "SELECT pg_sleep(?)";
    private static final String CHANGE = "UPDATE lab_rows SET changed = changed + 1 WHERE id = ? RETURNING id";
    private static final long RETRY_MS = 100;
    private static final int BATCH = 100;

    /** A unit of work on a connection. */
    private interface Unit {
        void run(Connection connection, int worker) throws SQLException, InterruptedException;
    }

    private final Map<String, Object> options = new LinkedHashMap<>();
    private final Map<String, Unit> modes = new LinkedHashMap<>();
    private final Properties login = new Properties();
    private String mode = "";
    private String url = "";
    private HikariDataSource pool;
    private double turnsPerMs;
    private volatile long kept;

    private long units;
    private long failures;
    private String failure;
    private final List<Double> unitMs = new ArrayList<>();
    private final List<Double> acquireMs = new ArrayList<>();
    private final List<Double> queryMs = new ArrayList<>();

    private LabApp() {
        options.put("seconds", 5.0);
        options.put("workers", 2L);
        options.put("pool", 0L);
        options.put("name", "lab-app");
        options.put("every", 2.0);
        options.put("pause_ms", 5.0);
        options.put("ids", 1_000L);
        options.put("rows", 20_000L);
        options.put("sleep_ms", 200.0);
        options.put("row", 1L);
        options.put("hold_ms", 200.0);
        options.put("row_sleep_ms", 5.0);
        options.put("metrics_port", 0L);
        modes.put("small", (connection, worker) -> ask(connection, ROW, 1, anyId()));
        modes.put("bulk", (connection, worker) -> ask(connection, ROWS, whole("rows"), whole("rows")));
        modes.put("slow", (connection, worker) -> {
            ask(connection, SLEEP, 1, number("sleep_ms") / 1e3);
            ask(connection, ROW, 1, anyId());
        });
        modes.put("scan", (connection, worker) -> ask(connection, SCAN, 1, ThreadLocalRandom.current().nextInt(1_000)));
        modes.put("write", (connection, worker) -> inTransaction(connection, () -> ask(connection, CHANGE, 1, whole("row"))));
        modes.put("write-own", (connection, worker) -> ask(connection, CHANGE, 1, worker + 1));
        modes.put("n+1", (connection, worker) -> {
            int first = 1 + ThreadLocalRandom.current().nextInt(Math.max(1, whole("ids") - BATCH));
            for (int id : ask(connection, IDS, BATCH, first, first)) {
                ask(connection, ROW, 1, id);
            }
        });
        modes.put("connect", modes.get("small"));
        modes.put("hold-sleep", (connection, worker) -> inTransaction(connection, () -> {
            ask(connection, ROW, 1, anyId());
            sleep(number("hold_ms"));
        }));
        modes.put("hold-cpu", (connection, worker) -> inTransaction(connection, () -> {
            ask(connection, ROW, 1, anyId());
            turn((long) (turnsPerMs * number("hold_ms")));
        }));
        modes.put("stream", (connection, worker) -> inTransaction(connection, () -> stream(connection)));
    }

    private double number(String name) {
        return ((Number) options.get(name)).doubleValue();
    }

    private int whole(String name) {
        return ((Number) options.get(name)).intValue();
    }

    private int anyId() {
        return 1 + ThreadLocalRandom.current().nextInt(whole("ids"));
    }

    private static void sleep(double ms) throws InterruptedException {
        TimeUnit.MICROSECONDS.sleep(Math.round(ms * 1e3));
    }

    /** Work inside of a transaction. */
    private interface Step {
        void run() throws SQLException, InterruptedException;
    }

    private static void inTransaction(Connection connection, Step step) throws SQLException, InterruptedException {
        connection.setAutoCommit(false);
        try {
            step.run();
            connection.commit();
        } catch (SQLException error) {
            connection.rollback();
            throw error;
        } finally {
            connection.setAutoCommit(true);
        }
    }

    /** Asks, looks at every row, and returns their first columns; fails where there are not so many. */
    private int[] ask(Connection connection, String text, int wanted, Object... values) throws SQLException {
        long began = System.nanoTime();
        int[] found = new int[wanted];
        int count = 0;
        try (PreparedStatement statement = connection.prepareStatement(text)) {
            for (int index = 0; index < values.length; index++) {
                statement.setObject(index + 1, values[index]);
            }
            try (ResultSet rows = statement.executeQuery()) {
                boolean numbers = text != SLEEP;
                while (rows.next()) {
                    if (numbers && count < wanted) {
                        found[count] = rows.getInt(1);
                    }
                    count++;
                }
            }
        }
        note(queryMs, began);
        if (count < wanted) {
            throw new SQLException("short", "short");
        }
        return found;
    }

    private void stream(Connection connection) throws SQLException, InterruptedException {
        long began = System.nanoTime();
        try (PreparedStatement statement = connection.prepareStatement(ROWS)) {
            statement.setFetchSize(BATCH);
            statement.setInt(1, whole("rows"));
            try (ResultSet rows = statement.executeQuery()) {
                for (int count = 1; rows.next(); count++) {
                    if (count % BATCH == 0) {
                        sleep(number("row_sleep_ms"));
                    }
                }
            }
        }
        note(queryMs, began);
    }

    /** Computes for so many turns. */
    private void turn(long turns) {
        long value = kept;
        for (long left = turns; left > 0; left--) {
            value = value * 6364136223846793005L + 1442695040888963407L;
        }
        kept = value;
    }

    private double calibrate() {
        double best = 0;
        for (int round = 0; round < 20; round++) {
            long began = System.nanoTime();
            turn(500_000);
            best = Math.max(best, 500_000 / ((System.nanoTime() - began) / 1e6));
        }
        return best;
    }

    private synchronized void note(List<Double> samples, long began) {
        samples.add((System.nanoTime() - began) / 1e6);
    }

    private Connection connection() throws SQLException {
        return mode.equals("connect") ? DriverManager.getConnection(url, login) : pool.getConnection();
    }

    private void work(int worker) {
        Unit unit = modes.get(mode);
        while (true) {
            long began = System.nanoTime();
            try {
                try (Connection connection = connection()) {
                    note(acquireMs, began);
                    unit.run(connection, worker);
                }
                synchronized (this) {
                    units++;
                }
                note(unitMs, began);
                sleep(number("pause_ms"));
            } catch (SQLException error) {
                synchronized (this) {
                    failures++;
                    failure = kind(error);
                }
                try {
                    sleep(RETRY_MS);
                } catch (InterruptedException over) {
                    return;
                }
            } catch (InterruptedException over) {
                return;
            }
        }
    }

    /** The SQLSTATE of the innermost error, else its name: never a message, which may tell more. */
    private static String kind(Throwable error) {
        while (error.getCause() != null) {
            error = error.getCause();
        }
        String state = error instanceof SQLException ? ((SQLException) error).getSQLState() : null;
        return state != null ? state : error.getClass().getSimpleName();
    }

    /** The nearest rank, null without samples. */
    private static String percentile(List<Double> samples, double share) {
        if (samples.isEmpty()) {
            return "null";
        }
        double[] sorted = samples.stream().mapToDouble(Double::doubleValue).toArray();
        Arrays.sort(sorted);
        return String.format(Locale.ROOT, "%.3f", sorted[(int) Math.round(share * (sorted.length - 1))]);
    }

    private static String quoted(Object value) {
        return value == null ? "null" : "\"" + value.toString().replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
    }

    /** Writes one line, by one write. */
    private synchronized void say(String more) {
        String numbers = "null";
        if (!mode.equals("connect")) {
            var now = pool.getHikariPoolMXBean();
            int open = now.getTotalConnections();
            int used = Math.min(now.getActiveConnections(), pool.getMaximumPoolSize());
            numbers = String.format("{\"size\":%d,\"max\":%d,\"checked_out\":%d,\"waiting\":%d}",
                Math.max(open, used), pool.getMaximumPoolSize(), used, now.getThreadsAwaitingConnection());
        }
        String line = "{\"load\":" + quoted(mode) + ",\"client\":\"java\",\"units\":" + units + ",\"failures\":" + failures
            + ",\"error\":" + quoted(failure) + ",\"pool\":" + numbers
            + ",\"p50_ms\":" + percentile(unitMs, 0.5) + ",\"p99_ms\":" + percentile(unitMs, 0.99)
            + ",\"acquire_p50_ms\":" + percentile(acquireMs, 0.5) + ",\"acquire_p99_ms\":" + percentile(acquireMs, 0.99)
            + ",\"query_p50_ms\":" + percentile(queryMs, 0.5) + more + "}\n";
        unitMs.clear();
        acquireMs.clear();
        queryMs.clear();
        failure = null;
        byte[] bytes = line.getBytes(StandardCharsets.UTF_8);
        System.out.write(bytes, 0, bytes.length);
        System.out.flush();
    }

    private String optionsAsJson() {
        StringBuilder text = new StringBuilder("{");
        for (Map.Entry<String, Object> each : options.entrySet()) {
            text.append(text.length() > 1 ? "," : "").append(quoted(each.getKey())).append(':');
            text.append(each.getValue() instanceof String ? quoted(each.getValue()) : each.getValue().toString());
        }
        return text.append('}').toString();
    }

    /** The page has the names of Micrometer's HikariCP metrics, whatever is asked for. */
    private void serve(int port) throws java.io.IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 8);
        server.createContext("/", exchange -> {
            var now = pool.getHikariPoolMXBean();
            Map<String, Integer> gauges = new LinkedHashMap<>();
            gauges.put("hikaricp_connections", now.getTotalConnections());
            gauges.put("hikaricp_connections_active", now.getActiveConnections());
            gauges.put("hikaricp_connections_idle", now.getIdleConnections());
            gauges.put("hikaricp_connections_pending", now.getThreadsAwaitingConnection());
            gauges.put("hikaricp_connections_max", pool.getMaximumPoolSize());
            gauges.put("hikaricp_connections_min", pool.getMinimumIdle());
            StringBuilder text = new StringBuilder();
            gauges.forEach((name, value) -> text.append("# TYPE ").append(name).append(" gauge\n").append(name)
                .append("{pool=\"").append(pool.getPoolName()).append("\"} ").append(value).append('\n'));
            byte[] body = text.toString().getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
    }

    private static void fail(String message) {
        System.err.println(message);
        Runtime.getRuntime().halt(2);
    }

    private void readOptions(String[] words) {
        for (int index = 0; index + 1 < words.length; index += 2) {
            String name = words[index].replaceFirst("^--", "").replace('-', '_');
            String value = words[index + 1];
            Object old = options.get(name);
            if (name.equals("mode")) {
                mode = value;
            } else if (old == null) {
                fail(words[index] + ": there is no such option");
            } else {
                try {
                    options.put(name, old instanceof String ? value : old instanceof Long ? (Object) Math.round(Double.parseDouble(value)) : Double.valueOf(value));
                } catch (NumberFormatException error) {
                    fail(words[index] + ": " + value + " is not a number");
                }
            }
        }
        if (!modes.containsKey(mode)) {
            fail("mode: " + mode + " is none; they stand in tests/lab/clients/__init__.py");
        }
    }

    private void readDsn(String dsn) {
        if (dsn == null) {
            fail("LAB_DSN is not set; it must be the URI of a PostgreSQL database");
            return;
        }
        try {
            URI uri = new URI(dsn);
            String[] user = uri.getUserInfo().split(":", 2);
            url = "jdbc:postgresql://" + uri.getHost() + ":" + (uri.getPort() < 0 ? 5432 : uri.getPort()) + uri.getPath()
                + (uri.getRawQuery() == null ? "" : "?" + uri.getRawQuery());
            login.setProperty("user", user[0]);
            login.setProperty("password", user.length > 1 ? user[1] : "");
            login.setProperty("ApplicationName", (String) options.get("name"));
        } catch (java.net.URISyntaxException | RuntimeException error) {
            fail("LAB_DSN: cannot be parsed as the URI of a PostgreSQL database"); // the error quotes a part of it
        }
    }

    public static void main(String[] words) throws Exception {
        LabApp app = new LabApp();
        app.readOptions(words);
        app.readDsn(System.getenv("LAB_DSN"));
        int workers = app.whole("workers");
        int connections = app.whole("pool");
        if (connections == 0) {
            connections = app.mode.startsWith("hold-") ? Math.max(1, workers / 2) : workers;
        }
        app.turnsPerMs = app.mode.equals("hold-cpu") ? app.calibrate() : 0;
        if (!app.mode.equals("connect")) {
            HikariConfig config = new HikariConfig();
            config.setJdbcUrl(app.url);
            config.setDataSourceProperties(app.login);
            config.setMaximumPoolSize(connections);
            config.setInitializationFailTimeout(-1);
            app.pool = new HikariDataSource(config);
        }
        app.say(",\"options\":" + app.optionsAsJson());
        if (app.whole("metrics_port") != 0) {
            app.serve(app.whole("metrics_port"));
        }
        for (int worker = 0; worker < workers; worker++) {
            int number = worker;
            Thread thread = new Thread(() -> app.work(number), "worker-" + worker);
            thread.setDaemon(true);
            thread.start();
        }
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            app.say(",\"done\":1");
            Runtime.getRuntime().halt(0);
        }));
        long end = System.nanoTime() + Math.round(app.number("seconds") * 1e9);
        long every = Math.round(app.number("every") * 1e9);
        CountDownLatch never = new CountDownLatch(1);
        for (long next = System.nanoTime() + every; ; next += every) {
            boolean last = next >= end;
            never.await(Math.max(0, (last ? end : next) - System.nanoTime()), TimeUnit.NANOSECONDS);
            if (last) {
                System.exit(0); // the hook writes the last line
            }
            app.say("");
        }
    }
}

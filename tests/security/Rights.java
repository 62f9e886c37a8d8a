import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FsShell;
import org.apache.hadoop.hbase.HBaseConfiguration;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.Connection;
import org.apache.hadoop.hbase.client.ConnectionFactory;
import org.apache.hadoop.hbase.security.access.AccessControlClient;
import org.apache.hadoop.hbase.security.access.Permission;
import org.apache.hadoop.util.ToolRunner;

/**
 * Runs lines of stdin, and answers each with what it prints and a line, "= ok" or what was wrong: "grant 'user', 'RW'[, 'table' | '@namespace']",
 * "revoke 'user'[, 'table' | '@namespace']", which takes all, and "hdfs dfs -command …".
 */
class Rights {
  private static final Pattern QUOTED = Pattern.compile("'([^']*)'");

  public static void main(String[] arguments) throws Throwable {
    Configuration conf = HBaseConfiguration.create();
    conf.set("fs.defaultFS", arguments[0]);
    try (Connection connection = ConnectionFactory.createConnection(conf);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        String answer;
        try {
          answer = run(connection, conf, line.trim());
        } catch (Throwable error) {
          answer = error.toString().replace('\n', ' ');
        }
        System.out.println("= " + answer);
      }
    }
  }

  private static String run(Connection connection, Configuration conf, String line) throws Throwable {
    if (line.startsWith("hdfs dfs ")) {
      String[] words = line.substring("hdfs dfs ".length()).split(" +");
      int code = ToolRunner.run(conf, new FsShell(), words);
      return code == 0 ? "ok" : line + " ended with " + code;
    }
    String[] quoted = QUOTED.matcher(line).results().map(found -> found.group(1)).toArray(String[]::new);
    boolean grant = line.startsWith("grant ");
    String user = quoted[0];
    Permission.Action[] actions =
        grant ? quoted[1].chars().mapToObj(Rights::action).toArray(Permission.Action[]::new) : Permission.Action.values();
    int at = grant ? 2 : 1;
    String where = quoted.length > at ? quoted[at] : "";
    if (where.isEmpty()) {
      if (grant) AccessControlClient.grant(connection, user, actions);
      else AccessControlClient.revoke(connection, user, actions);
    } else if (where.startsWith("@")) {
      if (grant) AccessControlClient.grant(connection, where.substring(1), user, actions);
      else AccessControlClient.revoke(connection, where.substring(1), user, actions);
    } else {
      TableName table = TableName.valueOf(where);
      if (grant) AccessControlClient.grant(connection, table, user, null, null, actions);
      else AccessControlClient.revoke(connection, table, user, null, null, actions);
    }
    return "ok";
  }

  private static Permission.Action action(int letter) {
    return Arrays.stream(Permission.Action.values())
        .filter(one -> one.code() == letter)
        .findFirst()
        .orElseThrow(() -> new IllegalArgumentException("no right " + (char) letter));
  }
}

import org.apache.hadoop.hbase.HBaseConfiguration;
import org.apache.hadoop.hbase.HColumnDescriptor;
import org.apache.hadoop.hbase.HTableDescriptor;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.Admin;
import org.apache.hadoop.hbase.client.Connection;
import org.apache.hadoop.hbase.client.ConnectionFactory;
import org.apache.hadoop.hbase.client.Put;
import org.apache.hadoop.hbase.client.Table;

/** Makes the table that is named and writes a row to its file, with classes that each version of HBase has. */
class WriteRow {
  public static void main(String[] arguments) throws Exception {
    TableName name = TableName.valueOf(arguments[0]);
    byte[] f = {'f'};
    try (Connection connection = ConnectionFactory.createConnection(HBaseConfiguration.create());
        Admin admin = connection.getAdmin()) {
      HTableDescriptor described = new HTableDescriptor(name);
      described.addFamily(new HColumnDescriptor(f));
      admin.createTable(described);
      try (Table table = connection.getTable(name)) {
        table.put(new Put(f).addColumn(f, f, f));
      }
      admin.flush(name);
    }
  }
}

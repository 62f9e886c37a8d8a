import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.NameCallback;
import javax.security.auth.callback.PasswordCallback;
import javax.security.sasl.AuthorizeCallback;
import javax.security.sasl.Sasl;
import javax.security.sasl.SaslException;
import javax.security.sasl.SaslServer;

/** The JDK's server of DIGEST-MD5, made as HBase makes it, driven by an octet and a counted text at a time. */
class DigestServer {
    private static String user;
    private static String password;

    public static void main(String[] arguments) throws Exception {
        user = arguments[0];
        password = arguments[1];
        DataInputStream in = new DataInputStream(System.in);
        DataOutputStream out = new DataOutputStream(System.out);
        SaslServer server = null;
        for (int order = in.read(); order != -1; order = in.read()) {
            byte[] text = in.readNBytes(in.readInt());
            byte[] answer;
            boolean done = true;
            try {
                switch (order) {
                    case 'b':
                        String[] lines = new String(text, StandardCharsets.US_ASCII).split("\n");
                        Map<String, String> wanted =
                                Map.of(Sasl.QOP, lines[0], "com.sun.security.sasl.digest.realm", lines[1]);
                        server = Sasl.createSaslServer("DIGEST-MD5", null, "default", wanted, DigestServer::answer);
                        answer = server.evaluateResponse(new byte[0]);
                        break;
                    case 's': answer = server.evaluateResponse(text); break;
                    case 'w': answer = server.wrap(text, 0, text.length); break;
                    case 'u': answer = server.unwrap(text, 0, text.length); break;
                    default: answer = (server.isComplete() + " " + server.getNegotiatedProperty(Sasl.QOP)).getBytes();
                }
            } catch (SaslException refusal) {
                answer = refusal.getMessage().getBytes();
                done = false;
            }
            out.writeBoolean(done);
            out.writeInt(answer.length);
            out.write(answer);
            out.flush();
        }
    }

    private static void answer(Callback[] callbacks) {
        boolean known = false;
        for (Callback callback : callbacks) {
            if (callback instanceof NameCallback name) {
                known = name.getDefaultName().equals(user);
            } else if (callback instanceof AuthorizeCallback authorize) {
                authorize.setAuthorized(true);
            }
        }
        for (Callback callback : callbacks) {
            if (callback instanceof PasswordCallback secret) {
                secret.setPassword(known ? password.toCharArray() : "another".toCharArray());
            }
        }
    }
}
